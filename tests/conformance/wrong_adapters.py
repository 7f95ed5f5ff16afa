"""Adapter methods for the conformance kit: a right one, and others that each break one clause."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from dovetail.errors import ConfigError
from dovetail.interfaces.adapter import AdapterWeights
from dovetail.interfaces.plugin import Info
from dovetail_plugins.adapters.lora import LoraAdapter
from dovetail_plugins.adapters.prompt import PromptAdapter

Config = Mapping[str, Any]


class RightAdapter(LoraAdapter):
    """Reads LoRA; the others derive from it."""

    info = Info(summary="LoRA")


class NamelessAdapter(RightAdapter):
    """Names its type as nobody writes it."""

    info = Info(summary="lower case")
    peft_types = ("lora",)


class NumblessAdapter(RightAdapter):
    """Divides by nothing."""

    info = Info(summary="infinite numbers")

    def read(self, folder: Path, config: Config) -> AdapterWeights:
        """Return changes divided by zero."""
        found = super().read(folder, config)
        changes = {
            name: change if change.up is None else replace(change, up=change.up / 0)
            for name, change in found.changes.items()
        }
        return AdapterWeights(changes=changes)


class RememberingAdapter(RightAdapter):
    """Keeps the modules of all adapters."""

    info = Info(summary="changes of all adapters")
    num_read = 0

    def read(self, folder: Path, config: Config) -> AdapterWeights:
        """Return changes, larger each time."""
        self.num_read += 1
        found = super().read(folder, config)
        changes = {
            name: change if change.up is None else replace(change, up=change.up * self.num_read)
            for name, change in found.changes.items()
        }
        return AdapterWeights(changes=changes)


class WrappedAdapter(RightAdapter):
    """Leaves PEFT's words in the names."""

    info = Info(summary="wrapped names")

    def read(self, folder: Path, config: Config) -> AdapterWeights:
        """Return changes by names that the model does not have."""
        found = super().read(folder, config).changes
        return AdapterWeights(changes={f"base_model.model.{n}": c for n, c in found.items()})


class ContentAdapter(RightAdapter):
    """Takes a folder without weights for an adapter that changes nothing."""

    info = Info(summary="no weights")

    def read(self, folder: Path, config: Config) -> AdapterWeights:
        """Return nothing where there is nothing."""
        if not list(folder.glob("adapter_model.*")):
            return AdapterWeights(changes={})
        return super().read(folder, config)


class VagueAdapter(RightAdapter):
    """Does not say which file is torn."""

    info = Info(summary="no file named")

    def read(self, folder: Path, config: Config) -> AdapterWeights:
        """Return what is right. Raises: ConfigError that names nothing"""
        try:
            return super().read(folder, config)
        except ConfigError as error:
            is_torn = (folder / "adapter_model.safetensors").exists()
            raise ConfigError(error.what, where=None if is_torn else error.where) from error


class CarelessAdapter(RightAdapter):
    """Passes over tensors that it does not know."""

    info = Info(summary="passes over")

    def read(self, folder: Path, config: Config) -> AdapterWeights:
        """Return what is known."""
        from safetensors.torch import load_file, save_file

        path = folder / "adapter_model.safetensors"
        if path.exists() and path.stat().st_size > 100:
            known = {name: one for name, one in load_file(path).items() if "lora" in name}
            save_file(known, path)
        return super().read(folder, config)


class TrustingAdapter(RightAdapter):
    """Unpickles whatever is there."""

    info = Info(summary="runs code")

    def read(self, folder: Path, config: Config) -> AdapterWeights:
        """Return what is right, after the code of the file has run."""
        path = folder / "adapter_model.bin"
        if path.exists():
            torch.load(path, weights_only=False)
        return super().read(folder, config)


class SecretAdapter(RightAdapter):
    """Puts vectors before a prompt without saying so."""

    info = Info(summary="secret vectors")

    def num_prompt_tokens(self, config: Config) -> int:
        """Return what the config says."""
        return int(config.get("num_virtual_tokens", 0))


class MiscountingAdapter(PromptAdapter):
    """Counts one vector less than there are."""

    info = Info(summary="miscounts")

    def read(self, folder: Path, config: Config) -> AdapterWeights:
        """Return all vectors but the last."""
        found = super().read(folder, config)
        assert found.prompt is not None
        return AdapterWeights(changes={}, prompt=found.prompt[:-1])

"""Adapters resolved: the flags about LoRA become the room for adapters and those of the start."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from dovetail import registry
from dovetail.config.config import Config
from dovetail.config.rules.selections import select
from dovetail.errors import ConfigError
from dovetail.interfaces.adapter_spec import AdapterSource, AdapterSpec
from dovetail.interfaces.spec import ModelSpec, Selection

MODULES = "--lora-modules"


def adapter_spec(config: Config, model: ModelSpec) -> AdapterSpec | None:
    """Return the room for adapters, None where none are served. Raises: ConfigError"""
    lora = config.lora
    if not lora.enable_lora:
        return None
    return AdapterSpec(
        max_slots=lora.max_loras,
        max_rank=lora.max_lora_rank,
        max_host=max(lora.max_cpu_loras or lora.max_loras, lora.max_loras),
        dtype=registry.value_of("lora_dtype", lora.lora_dtype) or model.weight_dtype or model.dtype,
        max_new_tokens=lora.lora_extra_vocab_size,
        takes_bias=lora.enable_lora_bias,
        is_divided=lora.fully_sharded_loras,
        methods=_methods(config),
    )


def first_adapters(config: Config) -> tuple[AdapterSource, ...]:
    """Return the adapters to load at the start. Raises: ConfigError"""
    return tuple(_source(text) for text in config.lora.lora_modules)


def _methods(config: Config) -> tuple[Selection, ...]:
    options = config.plugin.options_of("adapter")
    return tuple(
        select("adapter", name, where=MODULES, options=options.get(name, {}))
        for name in registry.names("adapter")
    )


def _source(text: str) -> AdapterSource:
    """Return the adapter that NAME=PATH, or a JSON object, names. Raises: ConfigError"""
    if text.lstrip().startswith("{"):
        return _from_object(text)
    name, _, path = text.partition("=")
    if not name or not path:
        raise ConfigError(
            f"{text!r} does not say which name an adapter gets.",
            where=MODULES,
            fix='write NAME=PATH, or {"name": ..., "path": ..., "base_model_name": ...}.',
        )
    return AdapterSource(name=name, path=path)


def _from_object(text: str) -> AdapterSource:
    try:
        given: Mapping[str, Any] = json.loads(text)
        return AdapterSource(
            name=str(given["name"]),
            path=str(given["path"]),
            base=str(given.get("base_model_name") or ""),
        )
    except (ValueError, KeyError, AttributeError) as error:
        raise ConfigError(
            f"{text} does not describe an adapter: {error!r}.",
            where=MODULES,
            fix='write {"name": ..., "path": ..., "base_model_name": ...}.',
        ) from error

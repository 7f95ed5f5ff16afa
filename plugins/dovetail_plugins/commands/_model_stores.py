"""The model stores of commands that take model names, and the flags for them."""

from __future__ import annotations

import argparse
import os
from typing import Any

from dovetail.config.checkpoint.sources.stores import Stores
from dovetail.config.config import Config, flags
from dovetail.config.parse.flags import add_section, config_of

STORE_FLAGS = ("model_dir", "download_dir")
HUB_FLAGS = ("revision", "download_dir", "hf_token", "use_modelscope")


def add_store_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags for the locations of models. Mutates: parser."""
    add_section(parser, "Stores", "where models lie", [flags()[name] for name in STORE_FLAGS])


def add_hub_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the hub. Mutates: parser."""
    add_section(parser, "Hub", "what is fetched, and as whom", [flags()[n] for n in HUB_FLAGS])


def settings_of(args: argparse.Namespace) -> Config:
    """Return the config of these flags and their environment variables. Raises: ConfigError"""
    names = {*STORE_FLAGS, *HUB_FLAGS}
    given: dict[str, Any] = {name: v for name, v in vars(args).items() if name in names}
    namespace = argparse.Namespace(config_files=[], **given)
    variables = {"VLLM_USE_MODELSCOPE", *(f"DOVETAIL_{name.upper()}" for name in names)}
    environ = {name: text for name, text in os.environ.items() if name in variables}
    return config_of(namespace, environ=environ)


def stores_of(args: argparse.Namespace) -> Stores:
    """Return the stores that the flags select. Raises: ConfigError"""
    load = settings_of(args).load
    return Stores.of(load.model_dir, load.download_dir, load.use_modelscope)

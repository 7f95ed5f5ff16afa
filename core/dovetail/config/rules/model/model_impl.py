"""--model-impl: a word for an implementation of models, or the name of one model plugin."""

from __future__ import annotations

from dovetail import registry
from dovetail.config.sections.model import ModelConfig


def wanted_impl(model_config: ModelConfig) -> str | None:
    """Return what --model-impl requests: None, "dovetail", "transformers" or a model plugin.

    None is no preference. A model plugin is NAME@DISTRIBUTION, package.module:Class or
    file.py:Class. Raises: UnknownPlugin
    """
    given = model_config.model_impl
    if names_model(given):
        return given
    value: str | None = registry.admin.value_of("model_impl", given)
    return value


def names_model(given: str) -> bool:
    """Return whether a value of --model-impl names one model plugin."""
    return "@" in given or ":" in given

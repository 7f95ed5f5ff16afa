"""--model-impl: a word for whose implementation runs the model, or one model plugin by its name."""

from __future__ import annotations

from dovetail import registry
from dovetail.config.config import Config


def wanted_impl(config: Config) -> str | None:
    """Return what --model-impl asks for: None for no wish, "dovetail", "transformers", or the
    spelling of a model plugin: NAME@DISTRIBUTION, package.module:Class, file.py:Class.

    Raises: UnknownPlugin
    """
    given = config.model.model_impl
    if names_model(given):
        return given
    value: str | None = registry.value_of("model_impl", given)
    return value


def names_model(given: str) -> bool:
    """Return whether a value of --model-impl is the spelling of one model plugin."""
    return "@" in given or ":" in given

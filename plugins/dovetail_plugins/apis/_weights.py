"""The version of the weights that an engine uses, as a client is shown it."""

from __future__ import annotations

from typing import Any

OWN_VERSION = "default"
"""Of the weights that a server has started with."""


def version_of(engine: Any) -> str:
    """Return the version of an engine's weights."""
    return str(engine.condition.weights.get("version") or OWN_VERSION)

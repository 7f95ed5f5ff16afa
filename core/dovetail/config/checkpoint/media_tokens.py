"""The tokens of config.json whose places in a prompt take the vectors of media."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FIELDS = ("{}_token_id", "{}_token_index", "{}_placeholder_token_id")
"""How config.json names the token of a kind."""
PARTS = {"image": "vision_config", "audio": "audio_config"}
"""Where some keep it beside what else is of the kind."""
PLAIN_KINDS = ("image", "audio")
"""Kinds that any processor of transformers reads alike; videos have ways of their own."""


def token_of(config: Mapping[str, Any], kind: str) -> int | None:
    """Return the token whose places take a kind's vectors, None where there is none."""
    for holder in (config, config.get(PARTS.get(kind, ""))):
        for name in FIELDS:
            found = holder.get(name.format(kind)) if isinstance(holder, Mapping) else None
            if isinstance(found, int):
                return found
    return None


def named_kinds(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the kinds of media whose tokens config.json names, but for videos."""
    return tuple(kind for kind in PLAIN_KINDS if token_of(config, kind) is not None)

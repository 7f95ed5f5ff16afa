"""Placeholder tokens: the tokens of config.json at whose positions media vectors are inserted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FIELDS = ("{}_token_id", "{}_token_index", "{}_placeholder_token_id", "{}_patch_id")
"""Names of such a token in config.json, by kind."""
PARTS = {"image": "vision_config", "audio": "audio_config"}
"""Section of config.json that may contain it, by kind."""
PROCESSOR = "gguf_processor"
"""Field of config.json with processor settings, if the checkpoint has no files of its own for them.
`processors()` has the function that writes these, under the same name."""
PLAIN_KINDS = ("image", "audio")
"""Kinds that all processors of transformers read in the same way; videos differ."""


def token_of(config: Mapping[str, Any], kind: str) -> int | None:
    """Return the placeholder token of a kind, None if there is none."""
    for holder in (config, config.get(PARTS.get(kind, ""))):
        for name in FIELDS:
            found = holder.get(name.format(kind)) if isinstance(holder, Mapping) else None
            if isinstance(found, int):
                return found
    return None


def named_kinds(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the kinds of media, except video, with a placeholder token in config.json."""
    return tuple(kind for kind in PLAIN_KINDS if token_of(config, kind) is not None)

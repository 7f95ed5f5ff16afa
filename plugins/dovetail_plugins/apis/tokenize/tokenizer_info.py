"""The answer of /get_tokenizer_info: a tokenizer's class, settings, special tokens and templates.

It includes tokenizer_config.json, if the tokenizer has one. Paths on this machine and values that
JSON cannot represent are left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dovetail.config.checkpoint.json_files import read_json
from dovetail.interfaces.tokenizer import Tokenizer

_PATHS = frozenset({"name_or_path", "tokenizer_file", "special_tokens_map_file", "vocab_file"})
NO_LIMIT = 10**18
"""Checkpoints use numbers above this for "no limit"."""


def tokenizer_info(
    folder: str, tokenizer: Tokenizer, templates: Mapping[str, str]
) -> dict[str, Any]:
    """Return the facts as JSON values. `templates` are the chat templates in use, by name."""
    facts = tokenizer.facts()
    settings = _settings(Path(folder))
    fields = {
        "tokenizer_class": settings.get("tokenizer_class") or type(tokenizer).__name__,
        "vocab_size": facts.vocab_size,
        "model_max_length": settings.get("model_max_length", facts.max_tokens),
        "bos_token_id": facts.bos_token_id,
        "eos_token_id": facts.eos_token_id,
        **facts.special_tokens,
        "special_tokens": facts.special_tokens,
        "special_token_ids": sorted(facts.special_ids),
        "chat_template": templates.get("default"),
        "chat_templates": templates,
    }
    return {str(name): _plain(value) for name, value in {**settings, **fields}.items()}


def _settings(folder: Path) -> dict[str, Any]:
    found = read_json(folder / "tokenizer_config.json", is_required=False)
    return {name: value for name, value in found.items() if name not in _PATHS}


def _plain(value: Any) -> Any:
    """Return the value in a form that every JSON parser accepts: no NaN, infinity or lone
    surrogate."""
    match value:
        case bool() | None:
            return value
        case int() | float():
            return value if abs(value) < NO_LIMIT and not math.isnan(value) else None
        case str():
            return value.encode("utf-8", "replace").decode()
        case Mapping():
            return {str(_plain(name)): _plain(entry) for name, entry in value.items()}
        case list() | tuple():
            return [_plain(entry) for entry in value]
        case _:
            return str(value)

"""A checkpoint's tokenizer settings: special tokens, chat templates, limits.

Format: tokenizer_config.json, special_tokens_map.json, chat_template.jinja of the Hugging Face
model folder. Imports no transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dovetail.config.checkpoint.code_files import named_classes
from dovetail.config.checkpoint.json_files import read_json
from dovetail.errors import ConfigError
from dovetail.interfaces.data.checkpoint_code import TOKENIZER

ANY_TOKENIZER = (
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "tekken.json",
    "tokenizer.model.v*",
    "*.tiktoken",
    "spiece.model",
    "sentencepiece.bpe.model",
)
NO_LIMIT = 10**18
"""transformers writes numbers beyond this for "no limit"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFacts:
    """The facts of a tokenizer (interfaces.tokenizer.TokenizerFacts)."""

    vocab_size: int
    bos_token_id: int | None
    eos_token_id: int | None
    special_tokens: dict[str, str] = field(default_factory=dict)
    special_ids: frozenset[int] = frozenset()
    special_texts: dict[int, str] = field(default_factory=dict)
    chat_template: str | None = None
    chat_templates: dict[str, str] = field(default_factory=dict)
    max_tokens: int | None = None


def require_tokenizer(folder: Path) -> None:
    """Raises: ConfigError when the folder has no tokenizer file at all."""
    if not folder.is_dir():
        raise ConfigError(
            "the tokenizer's folder does not exist.",
            where=str(folder),
            fix="give an existing folder with --tokenizer.",
        )
    if not has_tokenizer(folder):
        raise ConfigError(
            "the folder has no tokenizer.json (nor any other tokenizer file).",
            where=str(folder),
            fix="give the folder of a tokenizer with --tokenizer.",
        )


def has_tokenizer(folder: Path) -> bool:
    """Return whether a folder has any tokenizer file, or names code that could read others."""
    return any(next(folder.glob(name), None) for name in ANY_TOKENIZER) or names_code(folder)


def names_code(folder: Path) -> bool:
    """Return whether a folder's settings name a custom tokenizer class."""
    return TOKENIZER in named_classes(folder)


def read_settings(folder: Path) -> dict[str, Any]:
    """Return tokenizer_config.json, with missing settings from special_tokens_map.json."""
    settings = read_json(folder / "tokenizer_config.json", is_required=False)
    return {
        **read_json(folder / "special_tokens_map.json", is_required=False),
        **{k: v for k, v in settings.items() if v is not None},
    }


def token_text(value: Any) -> str | None:
    """Return a token's text from its string or its saved AddedToken."""
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) else None


def special_tokens(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return bos_token, eos_token, ... with their texts."""
    named = {k: token_text(v) for k, v in settings.items() if k.endswith("_token")}
    return {name: text for name, text in named.items() if text}


def extra_special_tokens(settings: Mapping[str, Any]) -> list[str]:
    """Return the texts of special tokens that have no name."""
    found: list[str] = []
    for key in ("additional_special_tokens", "extra_special_tokens"):
        values = settings.get(key) or []
        values = list(values.values()) if isinstance(values, Mapping) else values
        found.extend(text for text in map(token_text, values) if text)
    return found


def chat_templates(folder: Path, settings: Mapping[str, Any]) -> dict[str, str]:
    """Return all templates by name; files win over tokenizer_config.json."""
    templates: dict[str, str] = {}
    value = settings.get("chat_template")
    if isinstance(value, str):
        templates["default"] = value
    elif isinstance(value, list):
        templates.update({str(t["name"]): str(t["template"]) for t in value})
    if (folder / "chat_template.jinja").is_file():
        templates["default"] = (folder / "chat_template.jinja").read_text(encoding="utf-8")
    for path in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        templates[path.stem] = path.read_text(encoding="utf-8")
    return templates


def max_tokens(settings: Mapping[str, Any]) -> int | None:
    """Return model_max_length, None if it means "no limit"."""
    value = settings.get("model_max_length")
    return int(value) if isinstance(value, int | float) and value < NO_LIMIT else None


def tells_types(settings: Mapping[str, Any]) -> bool:
    """Return whether the model takes token types (which of two texts a token belongs to)."""
    names = settings.get("model_input_names")
    return not isinstance(names, list) or "token_type_ids" in names

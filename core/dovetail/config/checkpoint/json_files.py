"""Read one JSON file of a checkpoint as a dict."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dovetail.errors import ConfigError
from dovetail.json_values import InvalidJson, json_value

FLOAT_TAG = "__float__"
SPECIAL_FLOATS = ("Infinity", "-Infinity", "NaN")
"""Source: PreTrainedConfig of https://github.com/huggingface/transformers"""


def read_json(path: Path, *, is_required: bool = True) -> dict[str, Any]:
    """Return a JSON object from a file; {} if it is optional and missing. Raises: ConfigError.

    Infinities and NaN, which JSON lacks, are read in the form that transformers writes.
    """
    content = read_value(path, is_required=is_required)
    if not isinstance(content, dict):
        raise ConfigError(
            "must hold a JSON object.", where=str(path), fix="download the file again."
        )
    return content


def read_value(path: Path, *, is_required: bool = True) -> Any:
    """Return the value in a JSON file, otherwise as read_json. Raises: ConfigError."""
    if not path.is_file():
        if not is_required:
            return {}
        raise ConfigError(
            f"the folder has no {path.name}.",
            where=str(path.parent),
            fix="give a folder in Hugging Face layout (config.json, tokenizer.json, weights).",
        )
    try:
        content: Any = json_value(path.read_text(encoding="utf-8"), object_hook=_special_float)
    except InvalidJson as error:
        raise ConfigError(
            f"cannot be read as JSON: it {error}", where=str(path), fix="download the file again."
        ) from error
    except (OSError, UnicodeError) as error:
        raise ConfigError(
            f"the file cannot be read: {error}.", where=str(path), fix="download the file again."
        ) from error
    return content


def _special_float(found: dict[str, Any]) -> Any:
    """Return the float that {"__float__": "Infinity"} means; other objects unchanged."""
    text = found.get(FLOAT_TAG)
    is_tagged = len(found) == 1 and isinstance(text, str) and text in SPECIAL_FLOATS
    return float(text) if is_tagged and text is not None else found

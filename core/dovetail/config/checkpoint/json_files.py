"""One JSON file of a checkpoint as a dict."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dovetail.errors import ConfigError


def read_json(path: Path, *, is_required: bool = True) -> dict[str, Any]:
    """Return a JSON object from a file; {} when it may be missing and is. Raises: ConfigError."""
    if not path.is_file():
        if not is_required:
            return {}
        raise ConfigError(
            f"the folder has no {path.name}.",
            where=str(path.parent),
            fix="give a folder in Hugging Face layout (config.json, tokenizer.json, weights).",
        )
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"cannot be read as JSON: {error}.", where=str(path), fix="download the file again."
        ) from error
    if not isinstance(content, dict):
        raise ConfigError(
            "must hold a JSON object.", where=str(path), fix="download the file again."
        )
    return content

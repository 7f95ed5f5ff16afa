"""The tokens that tokenizer.json has beside those of its model."""

from __future__ import annotations

from pathlib import Path

from dovetail.config.checkpoint.json_files import read_json


def added_token(folder: Path, text: str) -> int | None:
    """Return the number of an added token, None where there is none of this text."""
    content = read_json(folder / "tokenizer.json", is_required=False)
    numbers = {token["content"]: token["id"] for token in content.get("added_tokens", ())}
    return numbers.get(text)

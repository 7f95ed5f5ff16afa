"""Added tokens: those that tokenizer.json lists in addition to its model's."""

from __future__ import annotations

from pathlib import Path

from dovetail.config.checkpoint.json_files import read_json


def added_token(folder: Path, text: str) -> int | None:
    """Return the id of an added token, None if no added token has this text."""
    content = read_json(folder / "tokenizer.json", is_required=False)
    numbers = {token["content"]: token["id"] for token in content.get("added_tokens", ())}
    return numbers.get(text)

"""Chat templates for Mistral's tokenizer versions, whose own files carry none."""

from __future__ import annotations


def template_of(kind: str, version: str) -> str | None:
    """Return the Jinja template of a tokenizer, None where none is written."""
    return None

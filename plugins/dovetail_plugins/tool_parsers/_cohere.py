"""The tags around the text of Cohere's Command models."""

from __future__ import annotations

LAYOUT = ("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>")

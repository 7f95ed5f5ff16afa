"""The tags of Kimi K3's markup around the parts of a message."""

from __future__ import annotations

OPEN, SEP, CLOSE = "<|open|>", "<|sep|>", "<|close|>"
MESSAGE_END = "<|end_of_msg|>"
LAYOUT = (
    f"{OPEN}response{SEP}",
    f"{CLOSE}response{SEP}",
    f"{CLOSE}message{SEP}",
    MESSAGE_END,
)

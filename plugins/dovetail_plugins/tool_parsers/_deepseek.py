"""The tags of DeepSeek's tool calls, special tokens of its vocabulary."""

from __future__ import annotations

from dovetail.interfaces.text import Markers

SECTION = Markers(start="<｜tool▁calls▁begin｜>", end="<｜tool▁calls▁end｜>")
BEGIN = "<｜tool▁call▁begin｜>"
END = "<｜tool▁call▁end｜>"
SEPARATOR = "<｜tool▁sep｜>"
INNER = (BEGIN, END, SEPARATOR)

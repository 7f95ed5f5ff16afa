"""The tags of DeepSeek's tool calls, special tokens of its vocabulary."""

from __future__ import annotations

from dovetail.interfaces.data.text import Layout, Markers

SECTION = Markers(start="<｜tool▁calls▁begin｜>", end="<｜tool▁calls▁end｜>")
BEGIN = "<｜tool▁call▁begin｜>"
END = "<｜tool▁call▁end｜>"
SEPARATOR = "<｜tool▁sep｜>"
INNER = (BEGIN, END, SEPARATOR)
MARKERS = (SECTION, Markers(start=BEGIN, is_body=True))
"""Models also leave the section out: a special token is never prose."""
LAYOUT: Layout = (SECTION.start, SECTION.end)

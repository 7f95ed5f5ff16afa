"""The texts around the parts of an answer of Solar Open."""

from __future__ import annotations

from dovetail.interfaces.data.text import Layout

END = "<|end|>"
LAYOUT: Layout = ("<|begin|>assistant", "<|content|>", END, "<|flush|>")

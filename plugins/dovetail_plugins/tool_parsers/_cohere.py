"""The tags around and within the text of Cohere's Command models.

Source: the chat templates of Command R7B and later ask for citations as <co>text</co: 0:[1,2]>,
Command R's grounded prompt as <co: 0>text</co: 0>. The reader sees the text.
"""

from __future__ import annotations

from dovetail.interfaces.data.text import Layout, Tag

CITATIONS = (Tag(start="<co", inside="0123456789:, "), Tag(start="</co", inside="0123456789:,[] "))
LAYOUT: Layout = (
    "<|START_RESPONSE|>",
    "<|END_RESPONSE|>",
    "<|START_TEXT|>",
    "<|END_TEXT|>",
    *CITATIONS,
)

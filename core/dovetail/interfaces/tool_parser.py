"""ToolParser: the syntax in which a model family writes tool calls.

A parser names its markers and parses one finished region; core finds the regions and owns
streaming, so a parser cannot depend on how the text was cut.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from dovetail.interfaces.plugin import Plugin
from dovetail.interfaces.text import Markers, Sample, Tool, ToolCall


class MalformedToolCall(ValueError):
    """The region's text is no call in this syntax; it is then passed on as content."""


class UnfinishedToolCall(MalformedToolCall):
    """The text is the beginning of a call: the end marker stood inside it (in a string, say), so
    core reads on to the next end marker before it gives the region up."""


class ToolParser(Plugin):
    """Immutable and shared by all requests."""

    interface_version: ClassVar[int] = 1
    known_capabilities: ClassVar[Mapping[str, str]] = {
        "parallel_calls": "several calls may follow each other",
    }
    markers: ClassVar[tuple[Markers, ...]]
    samples: ClassVar[tuple[Sample, ...]] = ()

    def __init__(self, options: Any) -> None:
        self.options = options

    @abstractmethod
    def parse(self, body: str, tools: Sequence[Tool]) -> list[ToolCall]:
        """Return the calls in one region, markers excluded. Raises: MalformedToolCall."""

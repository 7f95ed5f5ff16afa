"""Renderers for the conformance kit: a right one, and others that each break one clause."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from dovetail.errors import RequestError
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.renderer import TEMPLATES, Reads, Renderer, RendererFacts, RendererInput


class RightRenderer(Renderer):
    """A line for each message; the others derive from it."""

    info = Info(summary="a line for each message")

    def __init__(self, options: Any, facts: RendererFacts) -> None:
        self.options = options

    def reads(self, *, has_tools: bool) -> Reads:
        """Return that it reads texts."""
        return Reads()

    def render(self, given: RendererInput) -> str:
        """Return the lines."""
        tools = "".join(f"tool: {tool['function']['name']}\n" for tool in given.tools)
        lines = "".join(f"{turn['role']}: {turn['content']}\n" for turn in given.messages)
        return f"{tools}{lines}{'assistant:' if given.adds_generation_prompt else ''}"


class PictureRenderer(RightRenderer):
    """Reads what nobody gives."""

    def reads(self, *, has_tools: bool) -> Reads:
        """Return a form that does not exist."""
        return Reads(content="pictures")


class HastyRenderer(RightRenderer):
    """Leaves out what the system says."""

    def render(self, given: RendererInput) -> str:
        """Return the other lines."""
        kept = [turn for turn in given.messages if turn["role"] != "system"]
        return super().render(replace(given, messages=kept))


class ToollessRenderer(RightRenderer):
    """Leaves out what tools said."""

    def render(self, given: RendererInput) -> str:
        """Return the lines of people."""
        kept = [turn for turn in given.messages if turn["role"] != "tool"]
        return super().render(replace(given, messages=kept))


class LeadingRenderer(RightRenderer):
    """Puts the opening at the start."""

    def render(self, given: RendererInput) -> str:
        """Return the lines after the opening."""
        text = super().render(given)
        return f"assistant: {text}" if given.adds_generation_prompt else text


class PoppingRenderer(RightRenderer):
    """Takes the contents out of the messages."""

    def render(self, given: RendererInput) -> str:
        """Return the lines."""
        text = super().render(given)
        for turn in given.messages:
            turn.pop("content")
        return text


class CountingRenderer(RightRenderer):
    """Numbers the prompts."""

    count = 0

    def render(self, given: RendererInput) -> str:
        """Return the lines, with how many came before."""
        self.count += 1
        return f"{self.count // 6}\n{super().render(given)}"


class TidyRenderer(RightRenderer):
    """Ends every answer without a full stop."""

    def render(self, given: RendererInput) -> str:
        """Return the lines, the last one tidied if it is to be continued."""
        text = super().render(given)
        return text.replace(".\n", "\n") if given.continues_final_message else text


class TrustingRenderer(RightRenderer):
    """Looks for the call before each result."""

    def render(self, given: RendererInput) -> str:
        """Return the lines."""
        for before, turn in zip(given.messages, given.messages[1:], strict=False):
            if turn["role"] == "tool":
                before["tool_calls"][0]
        return super().render(given)


class DeafRenderer(RightRenderer):
    """Takes templates, and renders as before."""

    capabilities: ClassVar[frozenset[str]] = frozenset({TEMPLATES})

    def with_template(self, source: str) -> Renderer:
        """Return itself."""
        return self


class MeekRenderer(RightRenderer):
    """Ignores templates without a word."""

    def with_template(self, source: str) -> Renderer:
        """Return itself."""
        return self


class StrictRenderer(RightRenderer):
    """Right, too: refuses tools."""

    def render(self, given: RendererInput) -> str:
        """Return the lines. Raises: RequestError for tools"""
        if given.tools:
            raise RequestError("tools are not supported.", where="tools")
        return super().render(given)

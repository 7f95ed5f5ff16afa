"""Conversations in the Alpaca form, which models have that were trained on it without a template.

    dovetail serve MODEL --renderer examples/alpaca.py:Alpaca

docs/how_to/render_conversations.md says what the methods are for.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dovetail.errors import RequestError
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.renderer import Reads, Renderer, RendererFacts, RendererInput

HEADS = {"user": "### Instruction:\n", "assistant": "### Response:\n"}


@dataclass(frozen=True, kw_only=True)
class AlpacaOptions:
    """The options of the form."""

    system: str = field(
        default="Below is an instruction that describes a task. Write a response that "
        "appropriately completes the request.",
        metadata={"help": "text before conversations that have no system message"},
    )


class Alpaca(Renderer):
    """A heading before each message."""

    info = Info(
        summary="headings before instructions and responses (Alpaca)",
        source="https://github.com/tatsu-lab/stanford_alpaca",
    )
    Options = AlpacaOptions

    def __init__(self, options: AlpacaOptions, facts: RendererFacts) -> None:
        self.options = options

    def reads(self, *, has_tools: bool) -> Reads:
        """Return what there is a place for. Raises: RequestError for tools"""
        if has_tools:
            raise RequestError("this model's conversations have no place for tools.", where="tools")
        return Reads()

    def render(self, given: RendererInput) -> str:
        """Return the messages under their headings. Raises: RequestError for other roles"""
        parts = [_part(turn) for turn in given.messages]
        if given.messages[0]["role"] != "system":
            parts.insert(0, self.options.system)
        opening = [HEADS["assistant"]] if given.adds_generation_prompt else []
        return "\n\n".join([*parts, *opening])


def _part(turn: dict[str, Any]) -> str:
    role = turn["role"]
    if role not in ("system", *HEADS):
        raise RequestError(f'"{role}" is not a role of this model.', where="messages")
    return f"{HEADS.get(role, '')}{turn['content']}"

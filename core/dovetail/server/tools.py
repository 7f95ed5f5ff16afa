"""What a chat request's tools, reasoning and template mean for its session. Pure decisions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dovetail.errors import RequestError
from dovetail.interfaces.reasoning_parser import ReasoningParser
from dovetail.interfaces.tokenizer import TokenizerFacts
from dovetail.interfaces.tool_parser import ToolParser
from dovetail.server.events import SessionPlan
from dovetail.server.generation import STRUCTURED
from dovetail.server.protocol.chat import ChatRequest, ToolBody
from dovetail.server.render.messages import tool_values
from dovetail.server.state import Parsers


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUse:
    """The tools that count in this request: none when tool_choice is "none"."""

    tools: Sequence[ToolBody] = ()
    parser: ToolParser | None = None


def tool_use(body: ChatRequest, parsers: Parsers) -> ToolUse:
    """Return which tools are offered. Raises: RequestError for choices that cannot be kept."""
    choice = body.tool_choice
    if choice in (None, "auto", "none"):
        if not body.tools or choice == "none":
            return ToolUse()
        return ToolUse(tools=body.tools, parser=_needed(parsers.tool))
    _check_choice(body)
    raise RequestError(
        f'forcing a call {STRUCTURED}; "auto" and "none" work.',
        where="tool_choice",
        code="unsupported_field",
    )


def _check_choice(body: ChatRequest) -> None:
    choice = body.tool_choice
    if choice == "required" and not body.tools:
        raise RequestError("is given without tools.", where="tool_choice")
    if isinstance(choice, str) and choice != "required":
        raise RequestError(
            f'"{choice[:64]}" is none of auto, none, required or a function.', where="tool_choice"
        )


def _needed(parser: ToolParser | None) -> ToolParser:
    if parser is None:
        raise RequestError(
            "no tool parser is known for this model, so its calls could not be read.",
            where="tools",
            fix="start the server with --tool-call-parser NAME "
            "(`dovetail plugins list tool_parser` shows them).",
            code="no_tool_parser",
        )
    return parser


def session_plan(
    body: ChatRequest,
    use: ToolUse,
    reasoning: ReasoningParser | None,
    tail: str,
    facts: TokenizerFacts,
) -> SessionPlan:
    """Return how the answer's text is read. `tail` is the end of the rendered prompt."""
    one_call = body.parallel_tool_calls is False
    return SessionPlan(
        reasoning=reasoning.markers if reasoning else None,
        tool_parser=use.parser,
        tools=tool_values(use.tools),
        starts_inside=reasoning is not None and reasoning.starts_inside(tail),
        dropped=dropped_texts(body, markers_in_use(use.parser, reasoning), facts),
        max_calls=1 if one_call else None,
    )


def markers_in_use(parser: ToolParser | None, reasoning: ReasoningParser | None) -> set[str]:
    """Return every marker text that the session looks for."""
    regions = [*(parser.markers if parser else ()), *((reasoning.markers,) if reasoning else ())]
    return {text for region in regions for text in (region.start, region.end) if text}


def hides_markers(markers: set[str], facts: TokenizerFacts) -> bool:
    """Return whether skipping special tokens would hide a marker from the session."""
    return any(marker in facts.special_tokens.values() for marker in markers)


def dropped_texts(body: ChatRequest, markers: set[str], facts: TokenizerFacts) -> tuple[str, ...]:
    """Return special tokens that the session must remove, because the engine may not skip any."""
    if not body.skip_special_tokens or not hides_markers(markers, facts):
        return ()
    return tuple(sorted({t for t in facts.special_tokens.values() if t} - markers))

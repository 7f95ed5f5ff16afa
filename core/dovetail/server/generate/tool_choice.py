"""What a chat request's tools, reasoning and template mean for its session. Pure decisions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dovetail.errors import RequestError
from dovetail.interfaces.constraint import (
    Choice,
    Concat,
    Constraint,
    Literal,
    Regex,
    Repeat,
    choice_of,
    concat,
)
from dovetail.interfaces.reasoning_parser import ReasoningParser
from dovetail.interfaces.text import Tool
from dovetail.interfaces.tokenizer import TokenizerFacts
from dovetail.interfaces.tool_parser import ToolParser
from dovetail.server.generate.chat_body import ChatRequest, ToolBody
from dovetail.server.generate.events import SessionPlan
from dovetail.server.generate.server_state import Parsers
from dovetail.server.generate.structured_outputs import ConstraintRequest
from dovetail.server.generate.template.messages import tool_values


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUse:
    """The tools that the template sees; without a parser no call of theirs is read.

    `constraint` is what calls must follow, `is_named` says that the request names the tool.
    """

    tools: Sequence[ToolBody] = ()
    parser: ToolParser | None = None
    constraint: ConstraintRequest | None = None
    is_named: bool = False


def tool_use(
    body: ChatRequest, parsers: Parsers, *, hides_unused: bool = False, may_decide: bool = True
) -> ToolUse:
    """Return which tools are offered. With tool_choice "none" no call is read, and with
    `hides_unused` the template sees no tool; without `may_decide` the model itself is not asked
    whether to call. Of "allowed_tools" the model sees no others. Raises: RequestError for choices
    that cannot be kept.
    """
    body = with_allowed_tools(body)
    choice = body.tool_choice
    if choice in (None, "auto", "none"):
        if not body.tools or (choice == "none" and hides_unused):
            return ToolUse()
        if choice == "none":
            return ToolUse(tools=body.tools)
        if not may_decide:
            raise _undecided()
        parser = _needed(parsers.tool)
        return ToolUse(tools=body.tools, parser=parser, constraint=_strict(body, parser))
    if not body.tools:
        raise RequestError("is given without tools.", where="tool_choice")
    parser = _needed(parsers.tool)
    offered = [tool for tool in body.tools if choice == "required" or _is_named(tool, choice)]
    if not offered:
        raise RequestError("names no tool of this request.", where="tool_choice")
    is_named = choice != "required"
    most = 1 if is_named or body.parallel_tool_calls is False else None
    calls = calls_constraint(parser, tool_values(offered), most, where="tool_choice")
    constraint = ConstraintRequest(where="tool_choice", constraint=calls)
    return ToolUse(tools=body.tools, parser=parser, constraint=constraint, is_named=is_named)


def with_allowed_tools(body: ChatRequest) -> ChatRequest:
    """Return a request whose tool_choice lists what may be called as one that offers only that,
    with the list's mode as its choice. Raises: RequestError"""
    choice = body.tool_choice
    if not isinstance(choice, dict) or choice.get("type") != "allowed_tools":
        return body
    where = "tool_choice.allowed_tools"
    listed = choice.get("allowed_tools", choice)  # the Responses API has no object around it
    tools = listed.get("tools") if isinstance(listed, dict) else None
    if not isinstance(tools, list) or not tools:
        raise RequestError("must list tools.", where=where)
    if (mode := listed.get("mode", "auto")) not in ("auto", "required"):
        raise RequestError('must be "auto" or "required".', where=f"{where}.mode")
    known = {tool.function.name: tool for tool in body.tools or ()}
    names = [_name_of(tool, f"{where}.tools[{n}]") for n, tool in enumerate(tools)]
    if unknown := [name for name in names if name not in known]:
        raise RequestError(f'"{unknown[0][:64]}" is not a tool of this request.', where=where)
    allowed = [known[name] for name in known if name in names]
    return body.model_copy(update={"tools": allowed, "tool_choice": mode})


def _name_of(tool: Any, where: str) -> str:
    """Return the name in {"type": "function", "function": {"name"}}, or beside the type."""
    function = tool.get("function", tool) if isinstance(tool, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str) or tool.get("type", "function") != "function":
        raise RequestError("must name a function.", where=where)
    return name


def _undecided() -> RequestError:
    return RequestError(
        "this server does not let the model decide whether to call a tool.",
        where="tool_choice",
        fix='send "none", "required" or a function, or start the server without '
        "--no-enable-auto-tool-choice.",
        code="no_auto_tool_choice",
    )


def _is_named(tool: ToolBody, choice: Any) -> bool:
    """Return whether a tool_choice object names the tool. Raises: RequestError"""
    if isinstance(choice, str):
        raise RequestError(
            f'"{choice[:64]}" is not auto, none, required or a function.', where="tool_choice"
        )
    function = choice.get("function", choice)
    name = function.get("name") if isinstance(function, dict) else None
    if choice.get("type", "function") != "function" or not isinstance(name, str):
        raise RequestError(
            "must name a function.",
            where="tool_choice",
            fix='send {"type": "function", "function": {"name": NAME}}.',
        )
    return tool.function.name == name


def calls_constraint(
    parser: ToolParser, tools: Sequence[Tool], most: int | None, *, where: str
) -> Constraint:
    """Return the text of one call or more of these tools. Raises: RequestError"""
    constraints = [_call_constraint(parser, tool, where) for tool in tools]
    return parser.calls_constraint(choice_of(constraints), most)


def _call_constraint(parser: ToolParser, tool: Tool, where: str) -> Constraint:
    constraint = parser.constraint(tool)
    if constraint is None:
        raise RequestError(
            "this model's tool-call format cannot be constrained by a schema.",
            where=where,
            fix='use tool_choice "auto" and tools without strict.',
            code="unsupported_field",
        )
    return constraint


def _strict(body: ChatRequest, parser: ToolParser) -> ConstraintRequest | None:
    """Return how calls that the model may make are held to strict tools, if there are any."""
    assert body.tools is not None
    if not any(tool.function.strict for tool in body.tools):
        return None
    where = "tools"
    offered = tool_values(body.tools)
    constraints = [
        _call_constraint(parser, tool if given.function.strict else Tool(name=tool.name), where)
        for tool, given in zip(offered, body.tools, strict=True)
    ]
    marker = parser.markers[0]
    most = 1 if body.parallel_tool_calls is False else None
    calls = parser.calls_constraint(choice_of(constraints), most)
    if marker.opens_answer:
        other = Regex(f"(?s:[^{_escaped(marker.start[0])}].*)?")
        return ConstraintRequest(where=where, constraint=Choice((other, calls)))
    region = calls.part if isinstance(calls, Repeat) else calls
    return ConstraintRequest(
        where=where, tags=((marker.start, _without_start(region, marker.start)),)
    )


def _escaped(character: str) -> str:
    return "\\" + character if character in "[]\\^-" else character


def _without_start(constraint: Constraint, start: str) -> Constraint:
    """Return the constraint of what follows the opening marker of a call."""
    match constraint:
        case Literal(text) if text.startswith(start):
            return Literal(text[len(start) :])
        case Concat((first, *rest)):
            return concat(_without_start(first, start), *rest)
        case Choice(parts):
            return Choice(tuple(_without_start(part, start) for part in parts))
        case _:
            raise RequestError(
                "strict tools need a tool-call format with an opening tag, and this model's has "
                "none.",
                where="tools",
                fix='leave strict out, or use tool_choice "required".',
                code="unsupported_field",
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
    *,
    is_strict: bool = False,
) -> SessionPlan:
    """Return how the answer's text is read. `tail` is the end of the rendered prompt, `is_strict`:
    calls count in the parser's own syntax alone."""
    one_call = body.parallel_tool_calls is False or use.is_named
    layout = layout_in_use(use.parser, reasoning)
    return SessionPlan(
        reasoning=reasoning.markers if reasoning else None,
        tool_parser=use.parser,
        tools=tool_values(use.tools),
        starts_inside=reasoning is not None and reasoning.starts_inside(tail),
        layout=layout,
        max_calls=1 if one_call else None,
        is_forced_call=use.is_named,
        reads_bare=not is_strict,
    )


def markers_in_use(parser: ToolParser | None, reasoning: ReasoningParser | None) -> set[str]:
    """Return every text that the session or the tool parser looks for."""
    regions = [*(parser.markers if parser else ()), *((reasoning.markers,) if reasoning else ())]
    inner = parser.inner if parser else ()
    return {*inner, *(text for region in regions for text in (region.start, region.end) if text)}


def layout_in_use(parser: ToolParser | None, reasoning: ReasoningParser | None) -> tuple[str, ...]:
    """Return the texts that are never content, the longest first."""
    texts = {*(parser.layout if parser else ()), *(reasoning.layout if reasoning else ())}
    return tuple(sorted(texts, key=lambda text: (-len(text), text)))


def kept_special_ids(
    parser: ToolParser | None, reasoning: ReasoningParser | None, facts: TokenizerFacts
) -> tuple[int, ...]:
    """Return the special tokens in which markers or layout are written: they must be seen."""
    seen = {*markers_in_use(parser, reasoning), *layout_in_use(parser, reasoning)}
    found = (i for i, text in facts.special_texts.items() if text and any(text in s for s in seen))
    return tuple(sorted(found))

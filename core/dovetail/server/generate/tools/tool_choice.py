"""How a chat request's tools affect its answer: the session plan and the constraint."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dovetail.config.sections.frontend import FrontendConfig
from dovetail.errors import RequestError
from dovetail.interfaces.answer_reader import AnswerQuery
from dovetail.interfaces.data.constraint import (
    Choice,
    Concat,
    Constraint,
    FreeText,
    Literal,
    Regex,
    Repeat,
    choice_of,
    concat,
)
from dovetail.interfaces.data.spec import StructuredOutputSpec
from dovetail.interfaces.data.text import Layout, Markers, Tag, Tool
from dovetail.interfaces.reasoning_parser import ReasoningParser
from dovetail.interfaces.tokenizer import Tokenizer
from dovetail.interfaces.tool_parser import ToolParser
from dovetail.server.generate.body.chat import TOOLS, ChatRequest, ToolBody
from dovetail.server.generate.body.words import is_left_out
from dovetail.server.generate.events import SessionPlan
from dovetail.server.generate.events.matcher import longest_first
from dovetail.server.generate.rendering.messages import tool_values
from dovetail.server.generate.tools.parsers import Parsers
from dovetail.server.generate.tools.structured_outputs import (
    ConstraintRequest,
    requested_constraint,
)
from dovetail.server.generate.tools.tool_formats import held_call, ignored_formats, without_formats

if TYPE_CHECKING:
    from dovetail.interfaces.structured_output import CompiledConstraint
    from dovetail.server.generate.model_text import ModelText

AUTO = (None, "auto", "none")
"""The values of tool_choice that let the model decide, or forbid calls."""


def session_plan(
    body: ChatRequest, parsers: Parsers, frontend: FrontendConfig, tail: str
) -> SessionPlan:
    """Return how the text of an answer is parsed. `tail` is the end of the rendered prompt.

    Without a parser, tool calls are not parsed. Raises: RequestError for impossible choices.
    """
    parser = _parser_in_use(body, parsers.tool, may_decide=frontend.enable_auto_tool_choice)
    is_named = body.tool_choice not in (*AUTO, "required")
    reasoning, tools = parsers.reasoning, tool_values(body.tools or ())
    query = AnswerQuery(tools=tools, tail=tail, request=lambda: body.model_dump(mode="json"))
    return SessionPlan(
        reasoning=known_markers(reasoning, tail),
        reasoning_reading=reasoning.reads(query) if reasoning else None,
        starts_inside=reasoning is not None and reasoning.starts_inside(tail),
        tool_parser=parser,
        tool_reading=parser.reads(query) if parser else None,
        tools=tools,
        special_starts=parsers.special_starts,
        layout=layout_in_use(parser, reasoning),
        max_calls=1 if is_named or body.parallel_tool_calls is False else None,
        is_forced_call=is_named,
        reads_bare=not frontend.tool_parser_strict,
        custom=frozenset(t.function.name for t in body.tools or () if t.type == "custom"),
    )


def _parser_in_use(
    body: ChatRequest, parser: ToolParser | None, *, may_decide: bool
) -> ToolParser | None:
    """Return the parser of calls; None if calls are not parsed. Without `may_decide` the model may
    not decide itself whether to call. Raises: RequestError"""
    if body.tool_choice in AUTO:
        if not body.tools or body.tool_choice == "none":
            return None
        if not may_decide:
            raise _undecided()
        return _needed(parser)
    parser = _needed(parser).for_forced_calls() if body.tools else None
    chosen_tools(body)
    return parser


def chosen_tools(body: ChatRequest) -> list[ToolBody]:
    """Return the tools that the answer must call. Raises: RequestError if there is none"""
    if not body.tools:
        raise RequestError("is given without tools.", where="tool_choice")
    choice = body.tool_choice
    tools = [tool for tool in body.tools if choice == "required" or _is_named(tool, choice)]
    if not tools:
        raise RequestError("names no tool of this request.", where="tool_choice")
    return tools


def answer_constraint(
    body: ChatRequest, plan: SessionPlan, spec: StructuredOutputSpec | None
) -> ConstraintRequest | None:
    """Return the constraint of the whole answer. Raises: RequestError

    A request's own constraint applies to the answer's text. A required call is constrained only by
    its tool; an optional call is an alternative to the text.
    """
    calls = tool_constraint(body, plan.tool_parser) if plan.tool_parser else None
    if calls is not None and body.structured_outputs is not None:
        calls = replace(calls, closes=body.structured_outputs.close_on_length)
    words = requested_constraint(body, body.response_format, spec)
    if words is None or body.tool_choice not in AUTO:
        return calls or words
    if words.constraint is None:
        return _with_strict_calls(words, calls)
    possible = _possible_calls(body, plan.tool_parser)
    if possible is None:
        return words
    return replace(words, constraint=Choice((words.constraint, possible)))


async def compiled_constraint(
    text: ModelText, body: ChatRequest, plan: SessionPlan, tail: str
) -> tuple[CompiledConstraint | None, list[str]]:
    """Return the compiled constraint of the answer, and the ignored fields. A format of a tool that
    need not be called refuses no request. Raises: RequestError"""
    ignored = ignored_formats(body, plan.tool_parser) if body.tools else []
    try:
        constraint = answer_constraint(body, plan, text.structured_output_spec)
        if constraint is None:
            return None, ignored
        return await text.compile_constraint(constraint, plan, tail), ignored
    except RequestError:
        plain = without_formats(body)
        if body.tool_choice not in AUTO or plain is body:
            raise
        found, _ = await compiled_constraint(text, plain, plan, tail)
        return found, ["tools.format"]


def tool_constraint(body: ChatRequest, parser: ToolParser) -> ConstraintRequest | None:
    """Return the constraint from the tools: of required calls, or of optional calls of strict
    tools. Raises: RequestError"""
    if body.tool_choice in AUTO:
        return _strict(body, parser)
    is_one = body.tool_choice != "required" or body.parallel_tool_calls is False
    found = [_call_constraint(parser, tool, "tool_choice") for tool in chosen_tools(body)]
    calls = parser.calls_constraint(_any_of(found), 1 if is_one else None)
    return ConstraintRequest(where="tool_choice", constraint=calls)


def _with_strict_calls(
    words: ConstraintRequest, calls: ConstraintRequest | None
) -> ConstraintRequest:
    """Return the tags in free text, including the calls of strict tools. Raises: RequestError"""
    if calls is None:
        return words
    if calls.constraint is not None:
        raise RequestError(
            "structural tags and strict tools cannot be combined for this model: its tool calls "
            "have no opening tag.",
            where=words.where,
            fix="remove strict from the tools, or remove the structural tags.",
            code="unsupported_field",
        )
    return replace(words, tags=(*words.tags, *calls.tags))


def _possible_calls(body: ChatRequest, parser: ToolParser | None) -> Constraint | None:
    """Return the constraint of optional calls; None if the syntax cannot be constrained."""
    if parser is None:
        return None
    found = [_possible_call(parser, tool, is_bound=False) for tool in body.tools or ()]
    constraints = [constraint for constraint in found if constraint is not None]
    limit = 1 if body.parallel_tool_calls is False else None
    is_whole = len(constraints) == len(found)
    return parser.calls_constraint(_any_of(constraints), limit) if is_whole else None


def with_offered_tools(body: ChatRequest, frontend: FrontendConfig) -> ChatRequest:
    """Return a request with only the tools that the model may see. Raises: RequestError

    A list of allowed tools in tool_choice is replaced by its mode.
    """
    if any(tool.is_left_out for tool in body.tools or ()):
        tools = [tool for tool in body.tools or () if not tool.is_left_out]
        body = body.model_copy(update={"tools": tools or None})
    choice = body.tool_choice
    if choice == "none" and frontend.exclude_tools_when_tool_choice_none:
        return body.model_copy(update={"tools": None})
    if not isinstance(choice, dict) or choice.get("type") != "allowed_tools":
        return body
    where = "tool_choice.allowed_tools"
    listed = choice.get("allowed_tools", choice)  # the Responses API has no object around it
    entries = listed.get("tools") if isinstance(listed, dict) else None
    if not isinstance(entries, list) or not entries:
        raise RequestError("must list tools.", where=where)
    if (mode := listed.get("mode", "auto")) not in ("auto", "required"):
        raise RequestError('must be "auto" or "required".', where=f"{where}.mode")
    known = {(tool.type, tool.function.name): tool for tool in body.tools or ()}
    names = [
        _named(tool, f"{where}.tools[{n}]") for n, tool in enumerate(entries) if not _is_left(tool)
    ]
    if unknown := [name for name in names if name not in known]:
        name = unknown[0][1][:64]
        raise RequestError(f'"{name}" is not a tool of this request.', where=where)
    allowed = [known[name] for name in known if name in names]
    return body.model_copy(update={"tools": allowed or None, "tool_choice": mode})


def _named(tool: Any, where: str) -> tuple[str, str]:
    """Return (type, name) of {"type": "function", "function": {"name"}}, or with the name next to
    the type; custom tools alike. Raises: RequestError"""
    kind = tool.get("type", "function") if isinstance(tool, dict) else None
    inner = tool.get(kind, tool) if kind in ("function", "custom") else None
    name = inner.get("name") if isinstance(inner, dict) else None
    if not isinstance(name, str):
        raise RequestError(
            "must name a function.",
            where=where,
            fix='send {"type": "function", "function": {"name": NAME}}.',
        )
    return str(kind), name


def _is_left(tool: Any) -> bool:
    """Return whether an entry of allowed_tools names a tool type that is left out."""
    return isinstance(tool, dict) and is_left_out(TOOLS, str(tool.get("type")))


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
    return (tool.type, tool.function.name) == _named(choice, "tool_choice")


def _possible_call(parser: ToolParser, tool: ToolBody, *, is_bound: bool) -> Constraint | None:
    """Return the constraint of a call: by the grammar of its text if there is one, else by its
    schema if it is strict, or `is_bound`. None if the syntax cannot be constrained."""
    schema = tool.function.parameters if is_bound or tool.function.strict else None
    call = parser.constraint(Tool(name=tool.function.name, parameters=schema or {}))
    match call:
        case Concat((Literal() as head, Repeat(), Literal(tail))) if not schema and len(tail) > 3:
            call = concat(head, FreeText((tail,)), tail)  # with any names, in any order
    return held_call(parser, tool) or call


def _call_constraint(
    parser: ToolParser, tool: ToolBody, where: str, *, is_bound: bool = True
) -> Constraint:
    constraint = _possible_call(parser, tool, is_bound=is_bound)
    if constraint is None:
        raise RequestError(
            "this model's tool-call format cannot be constrained by a schema.",
            where=where,
            fix='use tool_choice "auto" and tools without strict.',
            code="unsupported_field",
        )
    return constraint


def _strict(body: ChatRequest, parser: ToolParser) -> ConstraintRequest | None:
    """Return the constraint of optional calls, if there are strict tools, or grammars."""
    assert body.tools is not None
    if not any(tool.function.strict or held_call(parser, tool) for tool in body.tools):
        return None
    where = "tools"
    constraints = [_call_constraint(parser, tool, where, is_bound=False) for tool in body.tools]
    marker = parser.markers[0]
    max_calls = 1 if body.parallel_tool_calls is False else None
    calls = parser.calls_constraint(_any_of(constraints), max_calls)
    if marker.opens_answer:
        other = Regex(f"(?s:[^{_escaped(marker.start[0])}].*)?")
        return ConstraintRequest(where=where, constraint=Choice((other, calls)))
    region = calls.part if isinstance(calls, Repeat) else calls
    return ConstraintRequest(
        where=where, tags=((marker.start, _without_start(region, marker.start)),)
    )


def _any_of(calls: Sequence[Constraint]) -> Constraint:
    """Return a choice that is the same, and so compiled once, however a client orders its tools."""
    return choice_of(sorted(calls, key=repr))


def _escaped(character: str) -> str:
    return "\\" + character if character in "[]\\^-" else character


def _without_start(constraint: Constraint, start: str) -> Constraint:
    """Return the constraint without the opening marker of a call."""
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


def known_markers(reasoning: ReasoningParser | None, tail: str) -> Markers | None:
    """Return the markers of the reasoning after a prompt; None if there is none or they are
    unknown."""
    markers = reasoning.markers_in(tail) if reasoning else None
    return markers if markers and markers.end else None


def layout_in_use(parser: ToolParser | None, reasoning: ReasoningParser | None) -> Layout:
    """Return the texts and tags that are never content, longest first."""
    found = (*(parser.layout if parser else ()), *(reasoning.layout if reasoning else ()))
    return longest_first(found) if len(found) > 1 else found


def kept_special_ids(
    plan: SessionPlan, ids_of: Callable[[frozenset[str]], tuple[int, ...]], tokenizer: Tokenizer
) -> tuple[int, ...]:
    """Return the special tokens that must stay visible: those that the parsers look for, found by
    `ids_of`, or all of them if a parser that reads the answer itself requires it."""
    readings = (plan.reasoning_reading, plan.tool_reading)
    if any(reading and reading.shows_special_tokens for reading in readings):
        return tuple(sorted(tokenizer.facts().special_ids))
    return ids_of(texts_in_use(plan))


def texts_in_use(plan: SessionPlan) -> frozenset[str]:
    """Return every text that the session or the tool parser looks for or treats as layout."""
    parser, regions = plan.tool_parser, [plan.reasoning] if plan.reasoning else []
    if parser is not None:
        regions += parser.markers
    markers = {text for region in regions for text in (region.start, region.end) if text}
    layout = [word.start if isinstance(word, Tag) else word for word in plan.layout]
    return frozenset((*markers, *layout, *(parser.inner if parser else ())))

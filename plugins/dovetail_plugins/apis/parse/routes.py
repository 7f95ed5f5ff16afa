"""POST /v1/parse: parse a model's text into the events of an answer."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from dovetail.interfaces.answer_reader import AnswerQuery
from dovetail.interfaces.api import Api, Route
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.tokenizer import Tokenizer
from dovetail.server.endpoint import (
    App,
    Collected,
    ContentDelta,
    CountedSession,
    Event,
    Parsers,
    ReasoningDelta,
    ServerOf,
    SessionPlan,
    ToolCallArgsDelta,
    ToolCallStart,
    json_reply,
    known_markers,
    layout_in_use,
    tool_values,
)
from dovetail_plugins.apis.chat.response import ChatResponseOptions, message_of, reasoning_names
from dovetail_plugins.apis.parse.protocol import ParseReply, ParseRequest

EVENT_NAMES = {
    ReasoningDelta: "reasoning",
    ContentDelta: "content",
    ToolCallStart: "tool_call",
    ToolCallArgsDelta: "tool_call_arguments",
}


async def parse_text(body: ParseRequest, server: ServerOf) -> Any:
    """Parse a model's text into reasoning, content and tool calls, with the named parsers or the
    server's."""
    ignored = server.fields.check(body, is_answered=False)
    tokenizer = server.engine.tokenizer
    parsers = server.text.parsers_for(body.tool_parser, body.reasoning_parser)
    plan = _plan(body, parsers, is_strict=server.frontend.tool_parser_strict)
    events = await server.run(lambda: _events(body.text, plan, tokenizer), len(body.text))
    reply = ParseReply(
        events=[_event(event) for event in events],
        message=message_of(_collected(events), _response_options(server)),
        starts_inside_reasoning=plan.starts_inside,
    )
    return json_reply(reply, ignored)


def _plan(body: ParseRequest, parsers: Parsers, *, is_strict: bool) -> SessionPlan:
    reasoning = parsers.reasoning
    tools = tool_values(body.tools or ())
    tail = body.prompt or ""
    query = AnswerQuery(
        tools=tools, tail=tail, request=lambda: body.model_dump(mode="json", include={"tools"})
    )
    return SessionPlan(
        reasoning=known_markers(reasoning, tail),
        tool_parser=parsers.tool,
        tools=tools,
        special_starts=parsers.special_starts,
        reasoning_reading=reasoning.reads(query) if reasoning else None,
        tool_reading=parsers.tool.reads(query) if parsers.tool else None,
        starts_inside=reasoning is not None and reasoning.starts_inside(tail),
        layout=layout_in_use(parsers.tool, reasoning),
        reads_bare=not is_strict and bool(body.tools),
    )


def _events(text: str, plan: SessionPlan, tokenizer: Tokenizer) -> list[Event]:
    session = CountedSession(plan)
    ids, num_chars = _tokens(text, tokenizer) if plan.is_staged else ((), ())
    return [*session.feed(text, ids, num_chars), *session.finish()]


def _tokens(text: str, tokenizer: Tokenizer) -> tuple[Sequence[int], Sequence[int]]:
    """Return a text's tokens, and how many characters each contributes. If the tokens do not
    reproduce the text, the last one contributes all."""
    ids = tokenizer.encode(text, add_special_tokens=False)
    stream = tokenizer.stream((), skip_special_tokens=False)
    pieces = [stream.push(token_id) for token_id in ids]
    is_spelled = text == "".join(pieces) + stream.flush()
    return ids, [len(piece) for piece in pieces] if is_spelled else [0] * len(ids)


def _collected(events: list[Event]) -> Collected:
    collected = Collected()
    collected.add(events)
    return collected


def _response_options(server: App) -> ChatResponseOptions:
    names = reasoning_names(server.frontend.reasoning_field)
    return ChatResponseOptions(role="assistant", reasoning_names=names)


def _event(event: Event) -> dict[str, Any]:
    return {"type": EVENT_NAMES[type(event)], **dataclasses.asdict(event)}


class ParseApi(Api):
    """A model's text as events."""

    info = Info(summary="reads a model's text as an answer would be read")
    routes = (Route(method="POST", path="/v1/parse", endpoint=parse_text, body=ParseRequest),)

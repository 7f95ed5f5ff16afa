"""POST /v1/parse: a model's text as the events that an answer would be made of."""

from __future__ import annotations

import dataclasses
from typing import Any

from dovetail.interfaces.api import Api, Route
from dovetail.interfaces.plugin import Info
from dovetail.server.api.chat.response import REASONING_NAMES, ChatResponseOptions, message_of
from dovetail.server.api.parse.protocol import ParseReply, ParseRequest
from dovetail.server.generate.dependencies import ServerOf
from dovetail.server.generate.events import (
    Collected,
    ContentDelta,
    Event,
    ReasoningDelta,
    Session,
    SessionPlan,
    ToolCallArgsDelta,
    ToolCallStart,
)
from dovetail.server.generate.ignored_fields import json_reply
from dovetail.server.generate.named_parsers import parsers_for
from dovetail.server.generate.server_state import Parsers, ServerState
from dovetail.server.generate.template.messages import tool_values
from dovetail.server.generate.tool_choice import layout_in_use

EVENT_NAMES = {
    ReasoningDelta: "reasoning",
    ContentDelta: "content",
    ToolCallStart: "tool_call",
    ToolCallArgsDelta: "tool_call_arguments",
}


async def parse_text(body: ParseRequest, server: ServerOf) -> Any:
    """Read a model's text: reasoning, content and tool calls, by the parsers named or in use."""
    ignored = server.fields.check(body, is_answered=False)
    parsers = parsers_for(server.parsers, body.tool_parser, body.reasoning_parser)
    plan = _plan(body, parsers, is_strict=server.frontend.tool_parser_strict)
    events = await server.run(lambda: _events(body.text, plan), len(body.text))
    reply = ParseReply(
        events=[_event(event) for event in events],
        message=message_of(_collected(events), _response_options(server)),
        starts_inside_reasoning=plan.starts_inside,
    )
    return json_reply(reply, ignored)


def _plan(body: ParseRequest, parsers: Parsers, *, is_strict: bool) -> SessionPlan:
    reasoning = parsers.reasoning
    return SessionPlan(
        reasoning=reasoning.markers if reasoning else None,
        tool_parser=parsers.tool,
        tools=tool_values(body.tools or ()),
        starts_inside=reasoning is not None and reasoning.starts_inside(body.prompt or ""),
        layout=layout_in_use(parsers.tool, reasoning),
        reads_bare=not is_strict and bool(body.tools),
    )


def _events(text: str, plan: SessionPlan) -> list[Event]:
    session = Session(plan)
    return [*session.feed(text), *session.finish()]


def _collected(events: list[Event]) -> Collected:
    collected = Collected()
    collected.add(events)
    return collected


def _response_options(server: ServerState) -> ChatResponseOptions:
    names = REASONING_NAMES[server.frontend.reasoning_field]
    return ChatResponseOptions(role="assistant", reasoning_names=names)


def _event(event: Event) -> dict[str, Any]:
    return {"type": EVENT_NAMES[type(event)], **dataclasses.asdict(event)}


class ParseApi(Api):
    """A model's text as events."""

    info = Info(summary="reads a model's text as an answer would be read")
    routes = (Route(method="POST", path="/v1/parse", endpoint=parse_text, body=ParseRequest),)

"""Compaction of conversations: /v1/responses/compact, and within a response.

The served model writes a summary (`compaction`), which takes the place of the assistant's turns: in
a response if the prompt exceeds `compact_threshold` of `context_management`, or if the input ends
with a `compaction_trigger`. Source: the OpenAI API guide on compaction.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

from fastapi import Request

from dovetail.errors import RequestFault
from dovetail.server.endpoint import (
    App,
    ChatRequest,
    ContentDelta,
    Generation,
    ServerOf,
    Step,
    in_words_of,
    json_response,
)
from dovetail_plugins.apis.responses import compaction
from dovetail_plugins.apis.responses.input import NAMES, chat_of
from dovetail_plugins.apis.responses.output_items import compaction_item, new_id
from dovetail_plugins.apis.responses.plan import Message, ResponsePlan, plan_of, prepared
from dovetail_plugins.apis.responses.protocol import (
    CompactedReply,
    CompactRequest,
    Item,
    ResponsesRequest,
)
from dovetail_plugins.apis.responses.response import (
    News,
    Summarized,
    SummaryStep,
    TurnEnd,
    usage_of,
)
from dovetail_plugins.apis.responses.state import ResponsesStateOf
from dovetail_plugins.usage import UsageCounter, shows_cached

FIELDS = (
    "model",
    "instructions",
    "tools",
    "reasoning",
    "chat_template_kwargs",
    "media_io_kwargs",
    "mm_processor_kwargs",
    "temperature",
    "top_p",
    "seed",
    "priority",
    "cache_salt",
)
"""The fields of a request that the summary of its conversation is written with."""

NewsOf = Callable[[ResponsePlan, Generation], AsyncGenerator[News, None]]


async def compact_response(
    body: CompactRequest, request: Request, server: ServerOf, state: ResponsesStateOf
) -> Any:
    """Return a conversation with a summary in place of the assistant's turns."""
    unknown = server.fields.check(body)
    with in_words_of(NAMES):
        plan = plan_of(server, state, body, request, unknown)
    async with AsyncExitStack() as owned:
        owned.enter_context(server.admission.admit(1))
        generation = await prepared(server, summary_plan(plan), request)
        steps = generation.steps(server)
        owned.push_async_callback(steps.aclose)
        reply = _compacted(plan, steps, shows_cached(server, body))
        return await json_response(generation.meta, reply)


async def _compacted(
    plan: ResponsePlan, steps: AsyncGenerator[Step, None], tells_cached: bool
) -> CompactedReply:
    counts = UsageCounter(shows_cached=tells_cached, shows_reasoning=True)
    parts: list[str] = []
    async for step in steps:
        counts.note(step)
        parts.append(_text_of(step))
    seal = compaction.seal_of(plan.messages, _checked("".join(parts)))
    users = [one for one in compaction.lasting(plan.messages) if one["role"] == "user"]
    return CompactedReply(
        id=f"resp_{secrets.token_hex(24)}",
        created_at=int(time.time()),
        output=[*map(_user_item, users), compaction_item(new_id("cmp"), seal)],
        usage=usage_of(counts),
    )


def _user_item(message: Message) -> Item:
    content = message["content"]
    parts = content if isinstance(content, list) else [content]
    return {
        "id": new_id("msg"),
        "type": "message",
        "status": "completed",
        "role": "user",
        "content": [
            {"type": "input_text", "text": part} if isinstance(part, str) else part
            for part in parts
        ],
    }


def summary_plan(plan: ResponsePlan) -> ResponsePlan:
    """Return the plan of the summary of a request's conversation."""
    return replace(plan, chat=_summary_chat(plan))


def _summary_chat(plan: ResponsePlan) -> ChatRequest:
    given = {name: getattr(plan.body, name) for name in FIELDS}
    body = ResponsesRequest(
        input=compaction.INSTRUCTION,
        max_output_tokens=compaction.SUMMARY_TOKENS,
        tool_choice="none" if plan.body.tools else None,
        **{name: value for name, value in given.items() if value is not None},
    )
    turns: Sequence[Message] = [
        *plan.messages,
        {"role": "user", "content": compaction.INSTRUCTION},
    ]
    return chat_of(body, turns, plan.offer.functions(), plan.offer.labels())


def has_turns_to_replace(plan: ResponsePlan) -> bool:
    """Return whether a summary would take the place of anything."""
    return len(compaction.lasting(plan.messages)) < len(plan.messages)


async def compacted_news(
    server: App, plan: ResponsePlan, first: Generation, request: Request, then: NewsOf | None
) -> AsyncGenerator[News, None]:
    """Yield a compaction written by `first`, then the answer to the shorter conversation, if
    `then` makes one."""
    steps = first.steps(server)
    parts: list[str] = []
    try:
        async for step in steps:
            parts.append(_text_of(step))
            yield SummaryStep(step=step)
    finally:
        await steps.aclose()
    summary = _checked("".join(parts))
    yield Summarized(seal=compaction.seal_of(plan.messages, summary))
    if then is None:
        yield TurnEnd(finish_reason="completed")
        return
    messages = compaction.summarized(plan.messages, summary)
    chat = chat_of(plan.body, messages, plan.offer.functions(), plan.offer.labels())
    shorter = replace(plan, messages=messages, chat=chat, names={})
    news = then(shorter, await prepared(server, shorter, request))
    try:
        async for one in news:
            yield one
    finally:
        await news.aclose()


def _text_of(step: Step) -> str:
    return "".join(event.text for event in step.events if isinstance(event, ContentDelta))


def _checked(summary: str) -> str:
    """Return a summary. Raises: RequestFault if the model wrote none"""
    if not summary.strip():
        raise RequestFault(
            "the model wrote no summary of the conversation.",
            where="input",
            fix="send it again, or without compaction.",
        )
    return summary.strip()

"""Answer: a chat model's answer in a realtime session: text, in the events of `response.create`."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Literal

from starlette.requests import HTTPConnection
from starlette.websockets import WebSocketDisconnect

from dovetail.errors import DovetailError
from dovetail.server.endpoint import (
    AnswerEnd,
    App,
    ContentDelta,
    Dialect,
    Step,
    prepare,
    problem_of,
)
from dovetail_plugins.apis.realtime.conversation import Conversation
from dovetail_plugins.apis.realtime.items import Item, Part
from dovetail_plugins.apis.realtime.protocol import Respond, TalkSettings
from dovetail_plugins.apis.realtime.words import Fields, new_event, new_id

logger = logging.getLogger("dovetail.server")
Send = Callable[[Iterable[Fields]], Awaitable[None]]
Status = Literal["completed", "incomplete", "cancelled", "failed"]


def _cause(end: AnswerEnd) -> str:
    return end.cause


WORDS = Dialect(
    finish_reason=_cause,
    field_names={"messages": "conversation", "max_tokens": "max_output_tokens"},
)


@dataclass(slots=True, kw_only=True)
class Answer:
    """One answer, wanted or being written. `stopped_by` says who does not want it any more."""

    wanted: Respond
    settings: TalkSettings
    id: str = field(default_factory=lambda: new_id("resp"))
    item_id: str = field(default_factory=lambda: new_id("item"))
    stopped_by: str | None = None
    text: str = ""
    last: Step | None = None

    @property
    def is_aside(self) -> bool:
        """Return whether the answer stays out of the conversation."""
        return self.wanted.response.conversation == "none"

    @property
    def max_tokens(self) -> int | None:
        """Return the limit of the answer's tokens."""
        own, general = self.wanted.response.max_output_tokens, self.settings.max_output_tokens
        found = general if own is None else own
        return None if found == "inf" else found

    def shown(self, status: str, details: Fields | None = None) -> Fields:
        """Return the response object."""
        is_over = status != "in_progress"
        return {
            "id": self.id,
            "object": "realtime.response",
            "status": status,
            "status_details": details,
            "output": [self.item(status).shown()] if is_over and self.text else [],
            "output_modalities": ["text"],
            "max_output_tokens": self.max_tokens or "inf",
            "metadata": self.wanted.response.metadata,
            "usage": self._usage() if is_over else None,
        }

    def item(self, status: str) -> Item:
        """Return the answer as an item."""
        said = (Part(type="output_text", text=self.text),) if self.text else ()
        state: Any = {"in_progress": status, "completed": status}.get(status, "incomplete")
        return Item(role="assistant", content=said, id=self.item_id, status=state)

    def _usage(self) -> Fields | None:
        step = self.last
        if step is None:
            return None
        return {
            "input_tokens": step.num_prompt_tokens,
            "output_tokens": step.num_generated_tokens,
            "total_tokens": step.num_prompt_tokens + step.num_generated_tokens,
            "input_token_details": {"cached_tokens": step.num_cached_tokens},
        }


async def write(
    answer: Answer, talk: Conversation, server: App, socket: HTTPConnection, model: str, send: Send
) -> None:
    """Write an answer, and add it to the conversation. A fault of the request is its last event.
    Mutates: answer, talk"""
    await send([new_event("response.created", response=answer.shown("in_progress"))])
    status: Status = "failed"
    try:
        status = await _written(answer, talk, server, socket, model, send)
        details = _details(answer, status)
    except WebSocketDisconnect:
        raise
    except Exception as error:
        if not isinstance(error, DovetailError):
            logger.error("the answer %s failed", answer.id, exc_info=error)
        info = problem_of(error).info
        fault = {"type": info.type, "code": info.code, "message": info.message}
        details = {"type": "failed", "error": fault}
    await send([new_event("response.done", response=answer.shown(status, details))])


def _details(answer: Answer, status: Status) -> Fields:
    reason = {"incomplete": "max_output_tokens", "cancelled": answer.stopped_by}.get(status)
    return {"type": status, "reason": reason}


async def _written(
    answer: Answer, talk: Conversation, server: App, socket: HTTPConnection, model: str, send: Send
) -> Status:
    """Write the text, and return how it ended. Raises: RequestError, RequestFault"""
    if answer.stopped_by is not None:
        return "cancelled"
    wanted = answer.wanted.response
    own = wanted.instructions
    body = talk.request(
        answer.settings.instructions if own is None else own,
        wanted.input,
        model=model,
        max_tokens=answer.max_tokens,
        temperature=answer.settings.temperature,
        request_id=answer.id,
    )
    with server.admission.admit(1):
        generation = await prepare(server, body, socket, dialect=WORDS)
        before = None if answer.is_aside else talk.last_id
        await send(_begun(answer, before))
        async with aclosing(generation.steps(server)) as steps:
            async for step in steps:
                answer.last = step
                text = "".join(one.text for one in step.events if isinstance(one, ContentDelta))
                answer.text += text
                if text:
                    await send([_of(answer, "response.output_text.delta", delta=text)])
                if answer.stopped_by is not None:
                    break
    is_cut = answer.last is not None and answer.last.finish_reason == "length"
    status: Status = "incomplete" if is_cut else "completed"
    if answer.stopped_by is not None:
        status = "cancelled"
    if not answer.is_aside and answer.text:
        talk.add(answer.item(status))
    await send(_ended(answer, status, before))
    return status


def _of(answer: Answer, kind: str, **fields: Any) -> Fields:
    """Return an event of the answer's only part."""
    place = {"response_id": answer.id, "item_id": answer.item_id}
    return new_event(kind, **place, output_index=0, content_index=0, **fields)


def _begun(answer: Answer, before: str | None) -> list[Fields]:
    item = answer.item("in_progress").shown()
    place = {"response_id": answer.id, "output_index": 0}
    events = [
        new_event("response.output_item.added", **place, item=item),
        _of(answer, "response.content_part.added", part={"type": "text", "text": ""}),
    ]
    if not answer.is_aside:
        added = new_event("conversation.item.added", item=item, previous_item_id=before)
        events.insert(1, added)
    return events


def _ended(answer: Answer, status: Status, before: str | None) -> list[Fields]:
    item = answer.item(status).shown()
    place = {"response_id": answer.id, "output_index": 0}
    part = {"type": "text", "text": answer.text}
    events = [
        _of(answer, "response.output_text.done", text=answer.text),
        _of(answer, "response.content_part.done", part=part),
        new_event("response.output_item.done", **place, item=item),
    ]
    if not answer.is_aside:
        events.append(new_event("conversation.item.done", item=item, previous_item_id=before))
    return events

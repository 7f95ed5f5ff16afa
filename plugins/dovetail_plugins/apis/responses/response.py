"""Responses: the typed events of a stream, and the whole response joined from the same steps.

Source: the OpenAI API reference, responses and their streaming events.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.server.endpoint import (
    AnswerEnd,
    Dialect,
    Framing,
    Problem,
    Step,
    engine_names,
    event_frame,
)
from dovetail_plugins.apis._content_blocks import BlockChange, ContentBlock, ContentBlocks
from dovetail_plugins.apis.responses.client_tools import client_call
from dovetail_plugins.apis.responses.input import NAMES, conversation_id, seals_reasoning
from dovetail_plugins.apis.responses.logprobs import TextLogprobs
from dovetail_plugins.apis.responses.mcp_items import CallEnd, ListedTools, McpCall, list_events
from dovetail_plugins.apis.responses.offered_tools import client_tools_of, namespaces_of, repeated
from dovetail_plugins.apis.responses.output_items import (
    CustomCall,
    Event,
    FunctionCall,
    OutputItem,
    ReasoningItem,
    TextItem,
    compaction_item,
    new_id,
)
from dovetail_plugins.apis.responses.protocol import (
    InputDetails,
    Item,
    OutputDetails,
    ResponseFault,
    ResponseReply,
    ResponsesRequest,
    ResponseUsage,
)
from dovetail_plugins.usage import UsageCounter

ECHOED = ("prompt_cache_key", "prompt_cache_retention", "safety_identifier", "user")
"""Text fields without effect, which the response repeats."""
SERVICE_TIER = "default"
"""The only service tier."""
CHOICE_FIELDS = ("type", "name", "namespace", "server_label", "mode", "tools")
RUNNING = frozenset({"queued", "in_progress"})

MAX_TOKENS = "max_output_tokens"


def finish_reason(end: AnswerEnd) -> str:
    """Return "completed" if the model ended the answer, else the reason why it is incomplete."""
    if end.cause not in ("stop", "length"):
        return end.cause
    return MAX_TOKENS if end.cause == "length" or end.is_unfinished else "completed"


RESPONSES = Dialect(finish_reason=finish_reason, field_names=engine_names(NAMES))


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnEnd:
    """The end of a turn. Without a `finish_reason` the model continues after its calls."""

    finish_reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryStep:
    """A step of the summary that a compaction consists of."""

    step: Step


@dataclass(frozen=True, slots=True, kw_only=True)
class Summarized:
    """The end of a compaction, with the summary as the client gets it."""

    seal: str


News = Step | TurnEnd | CallEnd | SummaryStep | Summarized
SUMMARY_TURN = -1
"""The turn that counts the tokens of a summary."""


class GrowingResponse:
    """One response while it grows; `status` is its state, `sequence` its next event's number."""

    def __init__(
        self,
        body: ResponsesRequest,
        *,
        model: str,
        params: SamplingParams,
        is_stored: bool,
        shows_cached: bool,
        lists: Sequence[ListedTools] = (),
        logprobs: TextLogprobs | None = None,
        shows_timings: bool = False,
    ) -> None:
        self.id = f"resp_{secrets.token_hex(24)}"
        self.status = "queued" if body.background else "in_progress"
        self._ended_by = ""
        self.sequence = 0
        self._body = body
        self._model = model
        self._params = params
        self._is_stored = is_stored
        self._created_s = int(time.time())
        self._completed_s: int | None = None
        self._blocks = ContentBlocks()
        self._logprobs = logprobs
        self._shows_timings = shows_timings
        self._items: list[OutputItem] = []
        self._counts = UsageCounter(shows_cached=shows_cached, shows_reasoning=True)
        self._fault: ResponseFault | None = None
        self._unlisted = list(lists)
        self._leading: list[Item] = []
        self._compaction_id = ""
        self._labels = {tool.name: listed.label for listed in lists for tool in listed.tools}
        self._served = frozenset(listed.label for listed in lists)
        self._namespaces = namespaces_of(body)
        self._client_tools = client_tools_of(body)
        self._turn, self._turn_start = 0, 0

    @property
    def is_running(self) -> bool:
        """Return whether more output may follow."""
        return self.status in RUNNING

    @property
    def awaits_client(self) -> bool:
        """Return whether the model has called one of the client's functions in this turn."""
        turn = self._items[self._turn_start :]
        return any(i.block.kind == "call" and not isinstance(i, McpCall) for i in turn)

    def pending(self) -> list[ContentBlock]:
        """Return this turn's calls that the server has to make."""
        return [item.block for item in self._pending()]

    def _pending(self) -> list[McpCall]:
        turn = self._items[self._turn_start :]
        return [item for item in turn if isinstance(item, McpCall) and item.end is None]

    def take(self, news: News) -> list[Event]:
        """Return the events of new output. Mutates: self"""
        started = self._start()
        return [*started, *self._taken(news)]

    def _start(self) -> list[Event]:
        """Return the event that a response has left the queue, if it was queued. Mutates: self"""
        was_queued = self.status == "queued"
        self.status = "in_progress"
        return [self.response_event("response.in_progress")] if was_queued else []

    def _taken(self, news: News) -> list[Event]:
        match news:
            case CallEnd():
                return self._call_ended(news)
            case TurnEnd():
                return self._finish(news.finish_reason, [])
            case SummaryStep():
                self._counts.note(news.step, SUMMARY_TURN)
                return self._compacting()
            case Summarized():
                return self._compacted(news.seal)
            case Step():
                events = self._list_tools()
                self._counts.note(news, self._turn)
                if self._logprobs is not None:
                    self._logprobs.note(news.logprobs or ())
                changes = self._blocks.feed(news.events)
                if news.finish_reason is not None:
                    return [*events, *self._finish(news.finish_reason, changes)]
                return [*events, *self._events_of(changes)]

    def _finish(self, reason: str | None, changes: list[BlockChange]) -> list[Event]:
        """Return the events at the end of a turn; with a reason the whole answer ends."""
        if reason is None:
            events = self._events_of([*changes, *self._blocks.next_turn()])
            self._turn, self._turn_start = self._turn + 1, len(self._blocks.blocks)
            return events
        self._ended_by = reason
        self.status = "completed" if reason == "completed" else "incomplete"
        events = self._events_of([*changes, *self._blocks.finish()])
        for item in self._pending():
            events.append(item.done(self._status(item), self._event))
        self._completed_s = int(time.time())
        return [*events, self.response_event(f"response.{self.status}")]

    def _events_of(self, changes: Sequence[BlockChange]) -> list[Event]:
        return [event for change in changes for event in self._events(change)]

    def begin(self) -> list[Event]:
        """Return the events before the first step. Mutates: self"""
        return [
            self.response_event("response.created"),
            self.response_event(f"response.{self.status}"),
        ]

    def fail(self, found: Problem) -> Event:
        """End with an error; return the event that reports it. Mutates: self"""
        self.status = "failed"
        code = "rate_limit_exceeded" if found.status == 429 else "server_error"
        self._fault = ResponseFault(code=code, message=found.info.message)
        return self.response_event("response.failed")

    def cancel(self) -> None:
        """End because the client cancelled. Mutates: self"""
        self.status = "cancelled"

    def output(self) -> list[Item]:
        """Return the items so far."""
        return [*self._leading, *(item.as_item(self._status(item)) for item in self._items)]

    def reply(self) -> ResponseReply:
        """Return the response so far."""
        body, is_cut = self._body, self.status == "incomplete"
        text = body.text.model_dump(by_alias=True, exclude_none=True) if body.text else {}
        return ResponseReply(
            id=self.id,
            object="response",
            created_at=self._created_s,
            completed_at=self._completed_s,
            status=self.status,
            background=bool(body.background),
            conversation={"id": conversation_id(body)} if body.conversation else None,
            error=self._fault,
            incomplete_details={"reason": self._ended_by} if is_cut else None,
            instructions=body.instructions,
            max_output_tokens=body.max_output_tokens,
            model=self._model,
            output=self.output(),
            parallel_tool_calls=body.parallel_tool_calls is not False,
            previous_response_id=body.previous_response_id,
            reasoning={
                "effort": body.reasoning.effort if body.reasoning else None,
                "summary": None,
            },
            store=self._is_stored,
            temperature=self._params.temperature,
            text={"format": {"type": "text"}} | text,
            tool_choice=_known(body.tool_choice, CHOICE_FIELDS) or "auto",
            tools=[one for tool in body.tools or () for one in repeated(tool, self._served)],
            top_logprobs=body.top_logprobs or 0,
            top_p=self._params.top_p,
            truncation=body.truncation or "disabled",
            usage=None
            if self.is_running or not self._counts.prompt_tokens
            else usage_of(self._counts),
            metadata=body.metadata or {},
            max_tool_calls=body.max_tool_calls,
            service_tier=SERVICE_TIER if body.service_tier else None,
            metrics=self._counts.timings() if self._shows_timings else None,
            **{name: _text_or_none(getattr(body, name)) for name in ECHOED},
        )

    def encoded(self) -> bytes:
        """Return the response so far as JSON."""
        return self.reply().model_dump_json().encode()

    def response_event(self, kind: str) -> Event:
        """Return an event that contains the current response. Mutates: self"""
        return self._event(kind, response=self.reply().model_dump())

    def _event(self, kind: str, /, **fields: Any) -> Event:
        number = self.sequence
        self.sequence += 1
        return {"type": kind, "sequence_number": number} | fields

    def _status(self, item: OutputItem) -> str:
        if isinstance(item, McpCall):
            return item.status(is_running=self.is_running)
        is_last = item.block is self._blocks.blocks[-1]
        if is_last and self.is_running and self._blocks.is_open:
            return "in_progress"
        if item.is_broken:
            return "incomplete"
        is_whole = not is_last or self.is_running or self.status == "completed"
        return "completed" if is_whole else "incomplete"

    def _events(self, change: BlockChange) -> list[Event]:
        block = change.block
        if change.what == "opened":
            self._items.append(self._new_item(block, len(self._leading) + block.index))
        if change.what == "grown" and block.kind != "text" and self._logprobs is not None:
            self._logprobs.skip(change.text)
        item = self._items[block.index]
        return item.events(change, self._status(item), self._event)

    def _new_item(self, block: ContentBlock, index: int) -> OutputItem:
        if block.kind == "text":
            return TextItem(block, index, self._logprobs)
        if block.kind == "reasoning":
            return ReasoningItem(block, index, seals=seals_reasoning(self._body))
        if block.name in self._labels:
            return McpCall(block, index, self._labels[block.name])
        if block.name in self._client_tools:
            return client_call(block, index, self._client_tools[block.name])
        namespace, name = self._namespaces.get(block.name, ("", block.name))
        kind = CustomCall if block.is_custom else FunctionCall
        return kind(block, index, name=name, namespace=namespace)

    def _compacting(self) -> list[Event]:
        """Return the events of a compaction's beginning, once. Mutates: self"""
        if self._compaction_id:
            return []
        self._compaction_id = new_id("cmp")
        place = {"output_index": len(self._leading)}
        item = compaction_item(self._compaction_id, "")
        return [
            self._event("response.output_item.added", item=item, **place),
            self._event("response.compaction.compacting", item_id=self._compaction_id, **place),
        ]

    def _compacted(self, seal: str) -> list[Event]:
        """Return the events of a compaction's end. Mutates: self"""
        item = compaction_item(self._compaction_id, seal)
        place = {"output_index": len(self._leading)}
        self._leading.append(item)
        return [self._event("response.output_item.done", item=item, **place)]

    def _list_tools(self) -> list[Event]:
        """Return the events that list the servers' tools, once. Mutates: self"""
        events = []
        for listed in self._unlisted:
            item = listed.as_item()
            events += list_events(item, len(self._leading), self._event)
            self._leading.append(item)
        self._unlisted = []
        return events

    def _call_ended(self, end: CallEnd) -> list[Event]:
        """Return the events of a call's end. Mutates: self"""
        item = self._items[end.block.index]
        assert isinstance(item, McpCall)
        return item.ended(end, self._event)


def usage_of(counts: UsageCounter) -> ResponseUsage:
    """Return token counts in the API's format."""
    usage = counts.usage()
    cached = usage.prompt_tokens_details
    thought = usage.completion_tokens_details
    return ResponseUsage(
        input_tokens=usage.prompt_tokens,
        input_tokens_details=InputDetails(cached_tokens=cached.cached_tokens) if cached else None,
        output_tokens=usage.completion_tokens,
        output_tokens_details=OutputDetails(
            reasoning_tokens=thought.reasoning_tokens if thought else 0
        ),
        total_tokens=usage.total_tokens,
    )


def _text_or_none(given: Any) -> str | None:
    """Return a text that the response may repeat; None for any other value."""
    return given.encode(errors="replace").decode() if isinstance(given, str) else None


def _known(given: Any, names: Sequence[str]) -> Any:
    """Return a request object reduced to the fields that were read; others unchanged."""
    return {n: given[n] for n in names if n in given} if isinstance(given, dict) else given


async def response_frames(
    news: AsyncIterator[News], answer: GrowingResponse
) -> AsyncGenerator[bytes, None]:
    """Yield the events of a stream, framed. Mutates: answer"""
    for event in answer.begin():
        yield event_frame(event)
    async for one in news:
        for event in answer.take(one):
            yield event_frame(event)


async def response_body(news: AsyncIterator[News], answer: GrowingResponse) -> ResponseReply:
    """Return the whole response: its stream, joined. Mutates: answer"""
    async for one in news:
        answer.take(one)
    return answer.reply()


def framing(answer: GrowingResponse) -> Framing:
    """Return the framing of a response stream: an error ends the response and is sent as a failed
    response."""
    return Framing(frame=bytes, end=b"", error=lambda found: event_frame(answer.fail(found)))

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
from dovetail_plugins.apis.responses.call_text import ARGUMENTS, INPUT
from dovetail_plugins.apis.responses.input import NAMES, conversation_id
from dovetail_plugins.apis.responses.logprobs import TextLogprobs
from dovetail_plugins.apis.responses.mcp import McpTool
from dovetail_plugins.apis.responses.offered_tools import namespaces_of, repeated
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

PREFIXES = {"reasoning": "rs", "text": "msg", "call": "fc"}
CHOICE_FIELDS = ("type", "name", "namespace", "server_label", "mode", "tools")
RUNNING = frozenset({"queued", "in_progress"})


def finish_reason(end: AnswerEnd) -> str:
    """Return the status of a response whose answer has ended, with or without calls."""
    return "incomplete" if end.cause == "length" or end.is_unfinished else "completed"


RESPONSES = Dialect(finish_reason=finish_reason, field_names=engine_names(NAMES))


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedTools:
    """The tools of one tool server that a request offers, under the request's label."""

    label: str
    tools: Sequence[McpTool]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallEnd:
    """The end of a block's call: the tool's output, or an error in the API's format."""

    block: ContentBlock
    output: str | None = None
    error: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnEnd:
    """The end of a turn. Without a `finish_reason` the model continues after its calls."""

    finish_reason: str | None = None


News = Step | TurnEnd | CallEnd


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
        self._told: dict[int, list[dict[str, Any]]] = {}
        self._ids: list[str] = []
        self._counts = UsageCounter(shows_cached=shows_cached, shows_reasoning=True)
        self._fault: ResponseFault | None = None
        self._unlisted = list(lists)
        self._lists: list[Item] = []
        self._labels = {tool.name: listed.label for listed in lists for tool in listed.tools}
        self._namespaces = namespaces_of(body)
        self._ends: dict[int, CallEnd] = {}
        self._turn, self._turn_start = 0, 0

    @property
    def is_running(self) -> bool:
        """Return whether more output may follow."""
        return self.status in RUNNING

    @property
    def awaits_client(self) -> bool:
        """Return whether the model has called one of the client's functions in this turn."""
        return any(b.kind == "call" and not self._is_mcp(b) for b in self._blocks_of_turn())

    def pending(self) -> list[ContentBlock]:
        """Return this turn's calls that the server has to make."""
        return [b for b in self._blocks_of_turn() if self._is_mcp(b) and b.index not in self._ends]

    def take(self, news: News) -> list[dict[str, Any]]:
        """Return the events of new output. Mutates: self"""
        started = self._start()
        return [*started, *self._taken(news)]

    def _start(self) -> list[dict[str, Any]]:
        """Return the event that a response has left the queue, if it was queued. Mutates: self"""
        was_queued = self.status == "queued"
        self.status = "in_progress"
        return [self.response_event("response.in_progress")] if was_queued else []

    def _taken(self, news: News) -> list[dict[str, Any]]:
        match news:
            case CallEnd():
                return self._call_ended(news)
            case TurnEnd():
                return self._finish(news.finish_reason, [])
            case Step():
                events = self._list_tools()
                self._counts.note(news, self._turn)
                if self._logprobs is not None:
                    self._logprobs.note(news.logprobs or ())
                changes = self._blocks.feed(news.events)
                if news.finish_reason is not None:
                    return [*events, *self._finish(news.finish_reason, changes)]
                return [*events, *self._events_of(changes)]

    def _finish(self, reason: str | None, changes: list[BlockChange]) -> list[dict[str, Any]]:
        """Return the events at the end of a turn; with a reason the whole answer ends."""
        if reason is None:
            events = self._events_of([*changes, *self._blocks.next_turn()])
            self._turn, self._turn_start = self._turn + 1, len(self._blocks.blocks)
            return events
        self.status = reason
        events = self._events_of([*changes, *self._blocks.finish()])
        for block in self.pending():
            events.append(self._item_done(block))
        self._completed_s = int(time.time())
        return [*events, self.response_event(f"response.{self.status}")]

    def _events_of(self, changes: Sequence[BlockChange]) -> list[dict[str, Any]]:
        return [event for change in changes for event in self._events(change)]

    def _is_mcp(self, block: ContentBlock) -> bool:
        return block.kind == "call" and block.name in self._labels

    def _blocks_of_turn(self) -> list[ContentBlock]:
        return self._blocks.blocks[self._turn_start :]

    def begin(self) -> list[dict[str, Any]]:
        """Return the events before the first step. Mutates: self"""
        return [
            self.response_event("response.created"),
            self.response_event(f"response.{self.status}"),
        ]

    def fail(self, found: Problem) -> dict[str, Any]:
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
        return [*self._lists, *(self._item(block) for block in self._blocks.blocks)]

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
            incomplete_details={"reason": "max_output_tokens"} if is_cut else None,
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
            tools=[one for tool in body.tools or () for one in repeated(tool)],
            top_logprobs=body.top_logprobs or 0,
            top_p=self._params.top_p,
            truncation=body.truncation or "disabled",
            usage=None if self.is_running or not self._counts.prompt_tokens else self._usage(),
            metadata=body.metadata or {},
            metrics=self._counts.timings() if self._shows_timings else None,
        )

    def encoded(self) -> bytes:
        """Return the response so far as JSON."""
        return self.reply().model_dump_json().encode()

    def _usage(self) -> ResponseUsage:
        usage = self._counts.usage()
        cached = usage.prompt_tokens_details
        thought = usage.completion_tokens_details
        return ResponseUsage(
            input_tokens=usage.prompt_tokens,
            input_tokens_details=None
            if cached is None
            else InputDetails(cached_tokens=cached.cached_tokens, cache_write_tokens=0),
            output_tokens=usage.completion_tokens,
            output_tokens_details=OutputDetails(
                reasoning_tokens=thought.reasoning_tokens if thought else 0
            ),
            total_tokens=usage.total_tokens,
        )

    def response_event(self, kind: str) -> dict[str, Any]:
        """Return an event that contains the current response. Mutates: self"""
        return self._event(kind, response=self.reply().model_dump())

    def _event(self, kind: str, **fields: Any) -> dict[str, Any]:
        number = self.sequence
        self.sequence += 1
        return {"type": kind, "sequence_number": number} | fields

    def _item(self, block: ContentBlock) -> Item:
        """Return a block as an item, complete or partial."""
        status = self._status(block)
        item: Item = {"id": self._ids[block.index], "status": status}
        match block.kind:
            case "reasoning":
                parts = [_part(block)] if block.parts else []
                return item | {"type": "reasoning", "summary": [], "content": parts}
            case "text":
                parts = [self._part(block)] if block.parts else []
                return item | {"type": "message", "role": "assistant", "content": parts}
            case "call" if self._is_mcp(block):
                return item | self._mcp_call(block)
            case "call":
                return item | self._call(block)

    def _call(self, block: ContentBlock) -> Item:
        """Return a call of the client's tool, under the client's name for it."""
        namespace, name = self._namespaces.get(block.name, ("", block.name))
        text = INPUT if block.is_custom else ARGUMENTS
        call = {"type": text.item, "call_id": block.call_id, "name": name, text.field: block.text}
        return call | ({"namespace": namespace} if namespace else {})

    def _mcp_call(self, block: ContentBlock) -> Item:
        end = self._ends.get(block.index)
        return {
            "type": "mcp_call",
            "server_label": self._labels[block.name],
            "name": block.name,
            "arguments": block.text,
            "output": end.output if end else None,
            "error": end.error if end else None,
            "approval_request_id": None,
        }

    def _status(self, block: ContentBlock) -> str:
        if self._is_mcp(block):
            return self._mcp_status(block)
        is_last = block is self._blocks.blocks[-1]
        if is_last and self.is_running and self._blocks.is_open:
            return "in_progress"
        if block.is_unfinished:
            return "incomplete"
        is_whole = not is_last or self.is_running or self.status == "completed"
        return "completed" if is_whole else "incomplete"

    def _mcp_status(self, block: ContentBlock) -> str:
        end = self._ends.get(block.index)
        if end is None:
            return "in_progress" if self.is_running else "incomplete"
        return "completed" if end.error is None else "failed"

    def _place(self, block: ContentBlock) -> dict[str, Any]:
        return {"output_index": len(self._lists) + block.index}

    def _events(self, change: BlockChange) -> list[dict[str, Any]]:
        block, place = change.block, self._place(change.block)
        if change.what == "opened":
            prefix = "mcp" if self._is_mcp(block) else PREFIXES[block.kind]
            prefix = "ctc" if block.is_custom else prefix
            self._ids.append(f"{prefix}_{secrets.token_hex(24)}")
        inner = place | {"item_id": self._ids[block.index]}
        if self._is_mcp(block):
            return self._mcp_events(change, place, inner)
        if block.kind != "call":
            inner["content_index"] = 0
        match change.what:
            case "opened":
                return self._opened(block, place, inner)
            case "grown":
                more = self._grown(block, change.text)
                kind = INPUT.delta if block.is_custom else _DELTAS[block.kind]
                return [self._event(kind, delta=change.text, **more, **inner)]
            case "closed":
                return self._closed(block, place, inner)

    def _opened(
        self, block: ContentBlock, place: dict[str, Any], inner: dict[str, Any]
    ) -> list[dict[str, Any]]:
        item = self._item(block) | {"status": "in_progress"}
        if block.kind == "call":
            name = INPUT.field if block.is_custom else ARGUMENTS.field
            return [self._event("response.output_item.added", item=item | {name: ""}, **place)]
        return [
            self._event("response.output_item.added", item=item | {"content": []}, **place),
            self._event("response.content_part.added", part=_part(block, ""), **inner),
        ]

    def _closed(
        self, block: ContentBlock, place: dict[str, Any], inner: dict[str, Any]
    ) -> list[dict[str, Any]]:
        done = self._event
        if block.kind == "call":
            text = INPUT if block.is_custom else ARGUMENTS
            fields = {text.field: block.text}
            if not block.is_custom:
                fields["name"] = self._namespaces.get(block.name, ("", block.name))[1]
            ends = [done(text.done, **fields, **inner)]
        else:
            more = {"logprobs": self._told.get(block.index, [])} if block.kind == "text" else {}
            ends = [
                done(_DONES[block.kind], text=block.text, **more, **inner),
                done("response.content_part.done", part=self._part(block), **inner),
            ]
        return [*ends, self._item_done(block)]

    def _grown(self, block: ContentBlock, text: str) -> dict[str, Any]:
        """Return a delta's fields besides its text. Mutates: self"""
        entries: list[dict[str, Any]] = []
        if self._logprobs is not None and block.kind == "text":
            entries = self._logprobs.take(text)
            self._told.setdefault(block.index, []).extend(entries)
        elif self._logprobs is not None:
            self._logprobs.skip(text)
        return {"logprobs": entries} if block.kind == "text" else {}

    def _part(self, block: ContentBlock) -> dict[str, Any]:
        return _part(block) | (
            {"logprobs": self._told.get(block.index, [])} if block.kind == "text" else {}
        )

    def _item_done(self, block: ContentBlock) -> dict[str, Any]:
        item = self._item(block)
        return self._event("response.output_item.done", item=item, **self._place(block))

    def _list_tools(self) -> list[dict[str, Any]]:
        """Return the events that list the servers' tools, once. Mutates: self"""
        events = []
        for listed in self._unlisted:
            item = _list_item(listed)
            place = {"output_index": len(self._lists)}
            inner = place | {"item_id": item["id"]}
            self._lists.append(item)
            events += [
                self._event("response.output_item.added", item=item | {"tools": []}, **place),
                self._event("response.mcp_list_tools.in_progress", **inner),
                self._event("response.mcp_list_tools.completed", **inner),
                self._event("response.output_item.done", item=item, **place),
            ]
        self._unlisted = []
        return events

    def _mcp_events(
        self, change: BlockChange, place: dict[str, Any], inner: dict[str, Any]
    ) -> list[dict[str, Any]]:
        """Return the events of a call that the server makes, up to its end."""
        match change.what:
            case "opened":
                item = self._item(change.block) | {"arguments": ""}
                return [
                    self._event("response.output_item.added", item=item, **place),
                    self._event("response.mcp_call.in_progress", **inner),
                ]
            case "grown":
                return [
                    self._event("response.mcp_call_arguments.delta", delta=change.text, **inner)
                ]
            case "closed":
                done = "response.mcp_call_arguments.done"
                return [self._event(done, arguments=change.block.text, **inner)]

    def _call_ended(self, end: CallEnd) -> list[dict[str, Any]]:
        """Return the events of a call's end. Mutates: self"""
        self._ends[end.block.index] = end
        inner = self._place(end.block) | {"item_id": self._ids[end.block.index]}
        word = "completed" if end.error is None else "failed"
        return [self._event(f"response.mcp_call.{word}", **inner), self._item_done(end.block)]


_DELTAS = {
    "reasoning": "response.reasoning_text.delta",
    "text": "response.output_text.delta",
    "call": ARGUMENTS.delta,
}
_DONES = {"reasoning": "response.reasoning_text.done", "text": "response.output_text.done"}


def _known(given: Any, names: Sequence[str]) -> Any:
    """Return a request object reduced to the fields that were read; others unchanged."""
    return {n: given[n] for n in names if n in given} if isinstance(given, dict) else given


def _list_item(listed: ListedTools) -> Item:
    tools = [
        {"name": tool.name, "description": tool.description, "input_schema": tool.schema}
        for tool in listed.tools
    ]
    return {
        "id": f"mcpl_{secrets.token_hex(24)}",
        "type": "mcp_list_tools",
        "server_label": listed.label,
        "tools": tools,
        "error": None,
    }


def _part(block: ContentBlock, text: str | None = None) -> dict[str, Any]:
    text = block.text if text is None else text
    if block.kind == "reasoning":
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


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

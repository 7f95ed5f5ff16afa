"""Steps as a response: the typed events of a stream, and the whole response made of the same.

Source: the OpenAI API reference, responses and their streaming events. Knows no engine and no
store.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Any

from dovetail.interfaces.sampling_params import SamplingParams
from dovetail.server.blocks import Block, Blocks, Change
from dovetail.server.errors import Problem
from dovetail.server.generation import Counts
from dovetail.server.protocol.responses import (
    InputDetails,
    Item,
    OutputDetails,
    ResponseFault,
    ResponseReply,
    ResponsesRequest,
    ResponseUsage,
)
from dovetail.server.streaming import Framing, Step, named_frame

PREFIXES = {"reasoning": "rs", "text": "msg", "call": "fc"}
TOOL_FIELDS = ("type", "name", "description", "parameters", "strict")
RUNNING = frozenset({"queued", "in_progress"})


class Answer:
    """One response as it grows; `status` is its state, `sequence` the number of its next event."""

    def __init__(
        self,
        body: ResponsesRequest,
        *,
        model: str,
        params: SamplingParams,
        is_stored: bool,
        shows_cached: bool,
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
        self._blocks = Blocks()
        self._ids: list[str] = []
        self._counts = Counts(shows_cached=shows_cached, shows_reasoning=True)
        self._fault: ResponseFault | None = None

    @property
    def is_running(self) -> bool:
        """Return whether more may come."""
        return self.status in RUNNING

    def take(self, step: Step) -> list[dict[str, Any]]:
        """Return the events of a step. Mutates: self"""
        self._counts.note(step)
        self.status = "in_progress"
        changes = self._blocks.feed(step.events)
        if step.finish_reason is not None:
            self.status = step.finish_reason
            changes += self._blocks.finish()
        events = [event for change in changes for event in self._events(change)]
        if step.finish_reason is not None:
            self._completed_s = int(time.time())
            events.append(self.told(f"response.{self.status}"))
        return events

    def begin(self) -> list[dict[str, Any]]:
        """Return the events that come before the first step. Mutates: self"""
        return [self.told("response.created"), self.told("response.in_progress")]

    def fail(self, found: Problem) -> dict[str, Any]:
        """End with an error; return the event that tells it. Mutates: self"""
        self.status = "failed"
        code = "rate_limit_exceeded" if found.status == 429 else "server_error"
        self._fault = ResponseFault(code=code, message=found.info.message)
        return self.told("response.failed")

    def cancel(self) -> None:
        """End because the client wished it. Mutates: self"""
        self.status = "cancelled"

    def output(self) -> list[Item]:
        """Return the items so far."""
        return [self._item(block) for block in self._blocks.blocks]

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
            tool_choice=_known(body.tool_choice, ("type", "name")) or "auto",
            tools=[{"strict": None} | _known(tool, TOOL_FIELDS) for tool in body.tools or ()],
            top_p=self._params.top_p,
            truncation=body.truncation or "disabled",
            usage=None if self.is_running else self._usage(),
            metadata=body.metadata or {},
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
            input_tokens_details=InputDetails(
                cached_tokens=cached.cached_tokens if cached else 0, cache_write_tokens=0
            ),
            output_tokens=usage.completion_tokens,
            output_tokens_details=OutputDetails(
                reasoning_tokens=thought.reasoning_tokens if thought else 0
            ),
            total_tokens=usage.total_tokens,
        )

    def told(self, kind: str) -> dict[str, Any]:
        """Return an event that tells the response as it is. Mutates: self"""
        return self._event(kind, response=self.reply().model_dump())

    def _event(self, kind: str, **fields: Any) -> dict[str, Any]:
        number = self.sequence
        self.sequence += 1
        return {"type": kind, "sequence_number": number} | fields

    def _item(self, block: Block) -> Item:
        """Return a block as an item, as far as it has come."""
        status = self._status(block)
        item: Item = {"id": self._ids[block.index], "status": status}
        match block.kind:
            case "reasoning":
                parts = [_part(block)] if block.parts else []
                return item | {"type": "reasoning", "summary": [], "content": parts}
            case "text":
                parts = [_part(block)] if block.parts else []
                return item | {"type": "message", "role": "assistant", "content": parts}
            case "call":
                call = {"type": "function_call", "call_id": block.call_id, "name": block.name}
                return item | call | {"arguments": block.text}

    def _status(self, block: Block) -> str:
        if block is not self._blocks.blocks[-1]:
            return "completed"
        if self.is_running:
            return "in_progress" if self._blocks.is_open else "completed"
        return "completed" if self.status == "completed" else "incomplete"

    def _events(self, change: Change) -> list[dict[str, Any]]:
        block, place = change.block, {"output_index": change.block.index}
        if change.what == "opened":
            self._ids.append(f"{PREFIXES[block.kind]}_{secrets.token_hex(24)}")
        inner = place | {"item_id": self._ids[block.index]}
        if block.kind != "call":
            inner["content_index"] = 0
        match change.what:
            case "opened":
                return self._opened(block, place, inner)
            case "grown":
                return [
                    self._event(_DELTAS[block.kind], delta=change.text, **_more(block), **inner)
                ]
            case "closed":
                return self._closed(block, place, inner)

    def _opened(
        self, block: Block, place: dict[str, Any], inner: dict[str, Any]
    ) -> list[dict[str, Any]]:
        item = self._item(block) | {"status": "in_progress"}
        if block.kind == "call":
            return [
                self._event("response.output_item.added", item=item | {"arguments": ""}, **place)
            ]
        return [
            self._event("response.output_item.added", item=item | {"content": []}, **place),
            self._event("response.content_part.added", part=_part(block, ""), **inner),
        ]

    def _closed(
        self, block: Block, place: dict[str, Any], inner: dict[str, Any]
    ) -> list[dict[str, Any]]:
        done = self._event
        if block.kind == "call":
            told = {"name": block.name, "arguments": block.text}
            ends = [done("response.function_call_arguments.done", **told, **inner)]
        else:
            ends = [
                done(_DONES[block.kind], text=block.text, **_more(block), **inner),
                done("response.content_part.done", part=_part(block), **inner),
            ]
        item = self._item(block)
        return [*ends, done("response.output_item.done", item=item, **place)]


_DELTAS = {
    "reasoning": "response.reasoning_text.delta",
    "text": "response.output_text.delta",
    "call": "response.function_call_arguments.delta",
}
_DONES = {"reasoning": "response.reasoning_text.done", "text": "response.output_text.done"}


def _known(given: Any, names: Sequence[str]) -> Any:
    """Return an object of the request with the fields that were read; anything else as it is."""
    return {n: given[n] for n in names if n in given} if isinstance(given, dict) else given


def _more(block: Block) -> dict[str, Any]:
    return {"logprobs": []} if block.kind == "text" else {}


def _part(block: Block, text: str | None = None) -> dict[str, Any]:
    text = block.text if text is None else text
    if block.kind == "reasoning":
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


async def response_frames(
    steps: AsyncIterator[Step], answer: Answer
) -> AsyncGenerator[bytes, None]:
    """Yield the events of a stream, framed. Mutates: answer"""
    for event in answer.begin():
        yield framed(event)
    async for step in steps:
        for event in answer.take(step):
            yield framed(event)


async def response_body(steps: AsyncIterator[Step], answer: Answer) -> ResponseReply:
    """Return the whole response: exactly its stream, joined. Mutates: answer"""
    async for step in steps:
        answer.take(step)
    return answer.reply()


def framed(event: dict[str, Any]) -> bytes:
    """Return an event as it is sent."""
    return named_frame(
        event["type"], json.dumps(event, ensure_ascii=False).encode("utf-8", "replace")
    )


def framing(answer: Answer) -> Framing:
    """Return how a response's stream is framed: an error ends the response, and is told as that."""
    return Framing(frame=bytes, end=b"", error=lambda found: framed(answer.fail(found)))

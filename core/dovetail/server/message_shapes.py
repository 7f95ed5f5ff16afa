"""Steps as Anthropic messages: the events of a stream, and the whole message made of the same.

Source: the Anthropic API reference, streaming messages.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from typing import Any

from dovetail.server.blocks import Block, Blocks, Change
from dovetail.server.errors import Problem, message_error
from dovetail.server.generation import Counts, Reply
from dovetail.server.protocol.messages import MessageReply, MessageUsage, OutputTokensDetails
from dovetail.server.streaming import Framing, Step, named_frame


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageShape:
    """What the request wants shown. `counts_reasoning`: a reasoning parser reads the answer."""

    shows_reasoning: bool = True
    shows_cached: bool = False
    counts_reasoning: bool = False


class Message:
    """One message as it grows."""

    def __init__(self, reply: Reply, shape: MessageShape) -> None:
        self._reply = reply
        self._shape = shape
        self._blocks = Blocks(shows_reasoning=shape.shows_reasoning)
        self._counts = Counts(
            shows_cached=shape.shows_cached, shows_reasoning=shape.counts_reasoning
        )
        self._stop_reason: str | None = None
        self._stop_sequence: str | None = None

    def take(self, step: Step) -> list[Change]:
        """Return what a step changes. Mutates: self"""
        self._counts.note(step)
        changes = self._blocks.feed(step.events)
        if step.finish_reason is not None:
            changes += self._blocks.finish()
            self._stop_reason = step.finish_reason
            if step.finish_reason == "stop_sequence":
                self._stop_sequence = str(step.stop_reason)
        return changes

    def body(self) -> MessageReply:
        """Return the message so far."""
        return MessageReply(
            id=f"msg_{self._reply.request_id}",
            type="message",
            role="assistant",
            model=self._reply.model,
            content=[content_block(block) for block in self._blocks.blocks],
            stop_reason=self._stop_reason,
            stop_sequence=self._stop_sequence,
            usage=self.usage(),
        )

    def usage(self) -> MessageUsage:
        """Return the tokens so far."""
        usage = self._counts.usage()
        details = usage.prompt_tokens_details
        num_cached = details.cached_tokens if details else 0
        made = MessageUsage(
            input_tokens=usage.prompt_tokens - num_cached,
            cache_creation_input_tokens=0,
            cache_read_input_tokens=num_cached,
            output_tokens=usage.completion_tokens,
        )
        if usage.completion_tokens_details is not None:
            thought = usage.completion_tokens_details.reasoning_tokens
            made.output_tokens_details = OutputTokensDetails(thinking_tokens=thought)
        return made

    def end(self) -> dict[str, Any]:
        """Return the event that tells how the message ended."""
        delta = {"stop_reason": self._stop_reason, "stop_sequence": self._stop_sequence}
        usage = self.usage().model_dump(exclude_unset=True)
        return {"type": "message_delta", "delta": delta, "usage": usage}


def content_block(block: Block) -> dict[str, Any]:
    """Return a block as content of a message; arguments that are not an object are cut ones."""
    if block.kind == "reasoning":
        thought = {"type": "thinking", "thinking": block.text}
        return thought | {"signature": signature(block.text)}
    if block.kind == "text":
        return {"type": "text", "text": block.text}
    return {
        "type": "tool_use",
        "id": block.call_id,
        "name": block.name,
        "input": _object(block.text),
    }


def signature(thought: str) -> str:
    """Return what stands where Anthropic signs a thought: clients hand thoughts without one back
    as none. A digest of the text; nobody reads it here."""
    digest = hashlib.sha256(thought.encode("utf-8", "replace")).digest()
    return base64.b64encode(digest).decode()


def _object(arguments: str) -> dict[str, Any]:
    """Return arguments as the object they are; {} where the answer ended within them."""
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


_EMPTY = {
    "reasoning": {"type": "thinking", "thinking": "", "signature": ""},
    "text": {"type": "text", "text": ""},
}


def _events(change: Change) -> list[dict[str, Any]]:
    block = change.block
    if change.what == "grown":
        return [_grown(block, _delta(block, change.text))]
    if change.what == "closed":
        signed = {"type": "signature_delta", "signature": signature(block.text)}
        ends = [_grown(block, signed)] if block.kind == "reasoning" else []
        return [*ends, {"type": "content_block_stop", "index": block.index}]
    call = {"type": "tool_use", "id": block.call_id, "name": block.name, "input": {}}
    start = _EMPTY.get(block.kind, call)
    return [{"type": "content_block_start", "index": block.index, "content_block": start}]


def _grown(block: Block, delta: dict[str, Any]) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": block.index, "delta": delta}


def _delta(block: Block, text: str) -> dict[str, Any]:
    match block.kind:
        case "reasoning":
            return {"type": "thinking_delta", "thinking": text}
        case "text":
            return {"type": "text_delta", "text": text}
        case "call":
            return {"type": "input_json_delta", "partial_json": text}


async def message_frames(
    steps: AsyncIterator[Step], message: Message
) -> AsyncGenerator[bytes, None]:
    """Yield the events of a stream, framed. Mutates: message"""
    is_first = True
    async for step in steps:
        if is_first:
            opening = message.body()
            changes = message.take(step)
            opening.usage = message.usage()
            started = opening.model_dump(exclude_unset=True)
            yield _framed({"type": "message_start", "message": started})
            yield _framed({"type": "ping"})
            is_first = False
        else:
            changes = message.take(step)
        for change in changes:
            for event in _events(change):
                yield _framed(event)
        if step.finish_reason is not None:
            yield _framed(message.end())
    yield _framed({"type": "message_stop"})


async def message_body(steps: AsyncIterator[Step], message: Message) -> MessageReply:
    """Return the whole message: exactly its stream, joined. Mutates: message"""
    async for step in steps:
        message.take(step)
    return message.body()


def _framed(event: dict[str, Any]) -> bytes:
    return named_frame(
        event["type"], json.dumps(event, ensure_ascii=False).encode("utf-8", "replace")
    )


def framing(request_id: str) -> Framing:
    """Return how a stream of messages is framed: an error is an event, and nothing ends it."""

    def error(found: Problem) -> bytes:
        return named_frame("error", message_error(found, request_id))

    return Framing(frame=bytes, end=b"", error=error)

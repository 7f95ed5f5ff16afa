"""Anthropic messages: the events of a stream, and the whole message joined from the same steps.

Source: the Anthropic API reference, streaming messages.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from typing import Any

from dovetail.server.endpoint import (
    AnswerEnd,
    Dialect,
    Framing,
    Problem,
    ResponseMeta,
    Step,
    engine_names,
    event_frame,
    named_frame,
)
from dovetail_plugins.apis._content_blocks import BlockChange, ContentBlock, ContentBlocks
from dovetail_plugins.apis.messages.errors import error_body
from dovetail_plugins.apis.messages.input import NAMES
from dovetail_plugins.apis.messages.pinned import Pinned
from dovetail_plugins.apis.messages.protocol import (
    CacheCreation,
    MessageReply,
    MessageUsage,
    OutputTokensDetails,
)
from dovetail_plugins.apis.messages.thoughts import signature_of
from dovetail_plugins.usage import UsageCounter


def finish_reason(end: AnswerEnd) -> str:
    """Return Anthropic's stop reason. An incomplete call always means "max_tokens". What else ends
    an answer is named as a stop sequence, since the API's list of reasons is closed.

    Source: its API reference, stop reasons.
    """
    if end.cause == "length" or end.is_unfinished:
        return "max_tokens"
    if end.num_calls and end.cause == "stop":
        return "tool_use"
    return "stop_sequence" if end.is_stop_text else "end_turn"


MESSAGES = Dialect(finish_reason=finish_reason, field_names=engine_names(NAMES))


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageResponseOptions:
    """Options of a message response. `counts_reasoning`: a reasoning parser reads the answer.

    `shows_reasoning`: thinking blocks have their text, not only a signature. `pinned` is what a
    mark keeps of the prompt, in blocks of `block_tokens`.
    """

    shows_reasoning: bool = True
    pinned: Pinned | None = None
    block_tokens: int = 1
    shows_cached: bool = False
    counts_reasoning: bool = False


class Message:
    """One message while it grows."""

    def __init__(self, meta: ResponseMeta, options: MessageResponseOptions) -> None:
        self._meta = meta
        self._options = options
        self._blocks = ContentBlocks()
        self._counts = UsageCounter(
            shows_cached=options.shows_cached, shows_reasoning=options.counts_reasoning
        )
        self._stop_reason: str | None = None
        self._stop_sequence: str | None = None

    def take(self, step: Step) -> list[BlockChange]:
        """Return the block changes of a step. Mutates: self"""
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
            id=f"msg_{self._meta.request_id}",
            type="message",
            role="assistant",
            model=self._meta.model,
            content=[self.content_block(b) for b in self._blocks.blocks if not b.is_unfinished],
            stop_reason=self._stop_reason,
            stop_sequence=self._stop_sequence,
            usage=self.usage(),
        )

    def usage(self) -> MessageUsage:
        """Return the token counts so far."""
        usage = self._counts.usage()
        details, pinned = usage.prompt_tokens_details, self._options.pinned
        counted = MessageUsage(
            input_tokens=usage.prompt_tokens, output_tokens=usage.completion_tokens
        )
        if details is not None:
            num_read = details.cached_tokens
            num_created = self._num_created(num_read)
            counted.input_tokens -= num_read + num_created
            counted.cache_creation_input_tokens = num_created
            counted.cache_read_input_tokens = num_read
            if num_created:
                is_long = pinned is not None and pinned.ttl == "1h"
                counted.cache_creation = CacheCreation(
                    ephemeral_5m_input_tokens=0 if is_long else num_created,
                    ephemeral_1h_input_tokens=num_created if is_long else 0,
                )
        if usage.completion_tokens_details is not None:
            thought = usage.completion_tokens_details.reasoning_tokens
            counted.output_tokens_details = OutputTokensDetails(thinking_tokens=thought)
        return counted

    def _num_created(self, num_read: int) -> int:
        """Return how many tokens a mark adds to those that are cached: whole blocks only."""
        pinned, size = self._options.pinned, self._options.block_tokens
        return 0 if pinned is None else max(0, pinned.num_tokens // size * size - num_read)

    def end(self) -> dict[str, Any]:
        """Return the event with the message's stop reason."""
        delta = {"stop_reason": self._stop_reason, "stop_sequence": self._stop_sequence}
        usage = self.usage().model_dump(exclude_unset=True)
        return {"type": "message_delta", "delta": delta, "usage": usage}

    def content_block(self, block: ContentBlock) -> dict[str, Any]:
        """Return a block as message content. A call must be complete: its input is an object."""
        if block.kind == "reasoning":
            is_shown = self._options.shows_reasoning
            thought = {"type": "thinking", "thinking": block.text if is_shown else ""}
            return thought | {"signature": signature_of(block.text, is_shown=is_shown)}
        if block.kind == "text":
            return {"type": "text", "text": block.text}
        return {
            "type": "tool_use",
            "id": block.call_id,
            "name": block.name,
            "input": block.arguments,
        }

    def events(self, change: BlockChange) -> list[dict[str, Any]]:
        """Return the events of a change."""
        block = change.block
        if change.what == "grown":
            is_silent = block.kind == "reasoning" and not self._options.shows_reasoning
            return [] if is_silent else [_grown(block, _delta(block, change.text))]
        if change.what == "closed":
            end = {"type": "content_block_stop", "index": block.index}
            return [*([self._signed(block)] if block.kind == "reasoning" else []), end]
        call = {"type": "tool_use", "id": block.call_id, "name": block.name, "input": {}}
        start = _EMPTY.get(block.kind, call)
        return [{"type": "content_block_start", "index": block.index, "content_block": start}]

    def _signed(self, block: ContentBlock) -> dict[str, Any]:
        given = signature_of(block.text, is_shown=self._options.shows_reasoning)
        return _grown(block, {"type": "signature_delta", "signature": given})


_EMPTY = {
    "reasoning": {"type": "thinking", "thinking": "", "signature": ""},
    "text": {"type": "text", "text": ""},
}


def _grown(block: ContentBlock, delta: dict[str, Any]) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": block.index, "delta": delta}


def _delta(block: ContentBlock, text: str) -> dict[str, Any]:
    match block.kind:
        case "reasoning":
            return {"type": "thinking_delta", "thinking": text}
        case "text":
            return {"type": "text_delta", "text": text}
        case "call":
            return {"type": "input_json_delta", "partial_json": text}


PING = event_frame({"type": "ping"})


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
            yield event_frame({"type": "message_start", "message": started})
            yield PING
            is_first = False
        else:
            changes = message.take(step)
        for change in changes:
            for event in message.events(change):
                yield event_frame(event)
        if step.finish_reason is not None:
            yield event_frame(message.end())
    yield event_frame({"type": "message_stop"})


async def message_body(steps: AsyncIterator[Step], message: Message) -> MessageReply:
    """Return the whole message: its stream, joined. Mutates: message"""
    async for step in steps:
        message.take(step)
    return message.body()


def framing(request_id: str) -> Framing:
    """Return the framing of a stream of messages: errors and keep-alives are events, and there is
    no end frame."""

    def error(found: Problem) -> bytes:
        return named_frame("error", error_body(found.status, found.info, request_id))

    return Framing(frame=bytes, end=b"", error=error, keep_alive=lambda: PING)

"""Chat answers in OpenAI's format: stream chunks, and the whole body joined from them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from dovetail import registry
from dovetail.server.endpoint import (
    CHAT_NAMES,
    AnswerEnd,
    Collected,
    CollectedCall,
    ContentDelta,
    Dialect,
    Event,
    Generation,
    ReasoningDelta,
    Step,
    TokenLogprob,
    ToolCallArgsDelta,
    ToolCallStart,
    chat_logprobs,
    prompt_logprobs,
)
from dovetail_plugins.apis._llama_timings import progress, timings
from dovetail_plugins.apis.chat.protocol import (
    CallCustom,
    CallFunction,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatLogprobs,
    ChatReply,
    ReplyCustomCall,
    ReplyDelta,
    ReplyMessage,
    ReplyToolCall,
    TimedChatReply,
    ToolCallPiece,
)
from dovetail_plugins.usage import StreamUsage, UsageCounter


def finish_reason(end: AnswerEnd) -> str:
    """Return chat's finish reason. A call of a function that the request named does not count as
    "tool_calls"; an incomplete call means "length", unless the engine knows better."""
    if end.is_unfinished and end.cause == "stop":
        return "length"
    is_call = end.cause == "stop" and end.num_calls and not end.is_forced_call
    return "tool_calls" if is_call else end.cause


CHAT = Dialect(finish_reason=finish_reason, field_names=CHAT_NAMES)


BOTH, BOTH_NAMES = "both", ("reasoning", "reasoning_content")
"""The default of --reasoning-field, and the fields that it selects."""


@cache
def reasoning_names(field: str) -> tuple[str, ...]:
    """Return the fields that contain the reasoning, by --reasoning-field."""
    if field == BOTH:
        return BOTH_NAMES
    names: tuple[str, ...] = registry.admin.value_of("reasoning_field", field)
    return names


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatResponseOptions:
    """Options of a chat response. `echo` is text prepended to every answer. `times_each` and
    `shows_progress` are llama.cpp's."""

    role: str
    num_top_logprobs: int | None = None
    names_tokens: bool = False
    shows_token_ids: bool = False
    shows_reasoning: bool = True
    stream_usage: StreamUsage = "never"
    shows_cached: bool = False
    shows_prompt_logprobs: bool = False
    reasoning_names: tuple[str, ...] = BOTH_NAMES
    echo: str = ""
    shows_timings: bool = False
    times_each: bool = False
    shows_progress: bool = False

    def step_fields(self, step: Step, *, is_first: bool) -> dict[str, Any]:
        """Return a chunk's times, and the first one's progress, if they are wanted."""
        fields: dict[str, Any] = {}
        if self.times_each:
            fields["timings"] = timings(step, step.num_generated_tokens)
        if self.shows_progress and is_first:
            fields["prompt_progress"] = progress(step)
        return fields

    def extra_fields(self, counts: UsageCounter) -> dict[str, Any]:
        """Return the answer's fields besides its text: its timings if shown, and the KV transfer
        params with which another engine can continue."""
        times = {"metrics": counts.timings()} if self.shows_timings else {}
        return times | ({"kv_transfer_params": counts.transfer} if counts.transfer else {})

    def counts(self, generation: Generation) -> UsageCounter:
        """Return an empty usage counter."""
        return UsageCounter(
            shows_cached=self.shows_cached,
            shows_reasoning=generation.plan.can_reason,
            shows_predicted=bool(generation.params.prediction),
        )

    def reasoning_fields(self, text: str) -> dict[str, Any]:
        """Return reasoning under the field names of this server."""
        return dict.fromkeys(self.reasoning_names, text)


def _delta(event: Event, options: ChatResponseOptions) -> ReplyDelta:
    match event:
        case ContentDelta(text=text):
            return ReplyDelta(content=text)
        case ReasoningDelta(text=text):
            return ReplyDelta(**options.reasoning_fields(text))
        case ToolCallStart(index=index, call_id=call_id, name=name, is_custom=True):
            custom = CallCustom(name=name, input="")
            call = ToolCallPiece(index=index, id=call_id, type="custom", custom=custom)
            return ReplyDelta(tool_calls=[call])
        case ToolCallArgsDelta(index=index, text=text, is_custom=True):
            call = ToolCallPiece(index=index, custom=CallCustom(input=text))
            return ReplyDelta(tool_calls=[call])
        case ToolCallStart(index=index, call_id=call_id, name=name):
            function = CallFunction(name=name, arguments="")
            call = ToolCallPiece(index=index, id=call_id, type="function", function=function)
            return ReplyDelta(tool_calls=[call])
        case ToolCallArgsDelta(index=index, text=text):
            call = ToolCallPiece(index=index, function=CallFunction(arguments=text))
            return ReplyDelta(tool_calls=[call])


def _is_shown(event: Event, options: ChatResponseOptions) -> bool:
    return options.shows_reasoning or not isinstance(event, ReasoningDelta)


def _step_logprobs(
    step: Step, generation: Generation, options: ChatResponseOptions
) -> list[TokenLogprob] | None:
    if options.num_top_logprobs is None or step.logprobs is None:
        return None
    num_top, names = options.num_top_logprobs, generation.meta.names
    return chat_logprobs(step.logprobs, num_top, names, is_named=options.names_tokens)


def _prompt_fields(
    step: Step, generation: Generation, options: ChatResponseOptions
) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if options.shows_token_ids:
        fields["prompt_token_ids"] = list(generation.prompt_ids)
    if options.shows_prompt_logprobs and step.prompt_logprobs is not None:
        fields["prompt_logprobs"] = prompt_logprobs(step.prompt_logprobs, generation.meta.names)
    return fields


class ChatChunks:
    """Makes the chunks of one stream."""

    def __init__(self, generation: Generation, options: ChatResponseOptions) -> None:
        self._generation = generation
        self._options = options
        self._counts = options.counts(generation)
        self._opened: set[int] = set()
        self._is_first = True

    async def run(self, steps: AsyncIterator[Step]) -> AsyncGenerator[bytes, None]:
        """Yield the JSON of every chunk."""
        async for step in steps:
            self._counts.note(step)
            for choice in self._choices(step):
                fields = self._options.step_fields(step, is_first=self._is_first)
                if self._is_first:
                    fields |= _prompt_fields(step, self._generation, self._options)
                    self._is_first = False
                yield self._chunk([choice], fields)
        if self._options.stream_usage != "never" or self._counts.transfer:
            yield self._encoded(
                [], {"usage": self._counts.usage(), **self._options.extra_fields(self._counts)}
            )

    def _choices(self, step: Step) -> list[ChatChunkChoice]:
        choices: list[ChatChunkChoice] = []
        if step.index not in self._opened:
            self._opened.add(step.index)
            opening = ReplyDelta(role=self._options.role, content=self._options.echo)
            choices.append(self._choice(step.index, opening))
        deltas = [_delta(e, self._options) for e in step.events if _is_shown(e, self._options)]
        extras = self._extras(step)
        if extras and not deltas:
            deltas = [ReplyDelta()]
        for position, delta in enumerate(deltas):
            choices.append(self._choice(step.index, delta, extras if position == 0 else {}))
        if step.finish_reason is not None:
            end = {"finish_reason": step.finish_reason, "stop_reason": step.stop_reason}
            choices.append(self._choice(step.index, ReplyDelta(), end))
        return choices

    def _extras(self, step: Step) -> dict[str, Any]:
        extras: dict[str, Any] = {}
        logprobs = _step_logprobs(step, self._generation, self._options)
        if logprobs:
            extras["logprobs"] = ChatLogprobs(content=logprobs)
        if self._options.shows_token_ids and step.token_ids:
            extras["token_ids"] = list(step.token_ids)
        return extras

    def _choice(
        self, index: int, delta: ReplyDelta, extras: dict[str, Any] | None = None
    ) -> ChatChunkChoice:
        base: dict[str, Any] = {"logprobs": None, "finish_reason": None}
        return ChatChunkChoice(index=index, delta=delta, **(base | (extras or {})))

    def _chunk(self, choices: list[ChatChunkChoice], fields: dict[str, Any]) -> bytes:
        if self._options.stream_usage == "always":
            fields = fields | {"usage": self._counts.usage()}
        elif self._options.stream_usage == "at_end":
            fields = fields | {"usage": None}
        return self._encoded(choices, fields)

    def _encoded(self, choices: list[ChatChunkChoice], fields: dict[str, Any]) -> bytes:
        meta = self._generation.meta
        chunk = ChatChunk(
            id=f"chatcmpl-{meta.request_id}",
            object="chat.completion.chunk",
            created=meta.created_s,
            model=meta.model,
            choices=choices,
            system_fingerprint=meta.fingerprint,
            **fields,
        )
        return chunk.model_dump_json(exclude_unset=True).encode()


@dataclass(slots=True, kw_only=True)
class _Answer:
    """One answer while its steps are joined."""

    collected: Collected = field(default_factory=Collected)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None


async def chat_reply(
    steps: AsyncIterator[Step], generation: Generation, options: ChatResponseOptions
) -> ChatReply:
    """Return the whole answer: its stream, joined."""
    meta = generation.meta
    answers: dict[int, _Answer] = {}
    counts = options.counts(generation)
    fields: dict[str, Any] = {}
    async for step in steps:
        counts.note(step)
        fields = _prompt_fields(step, generation, options) | fields
        if options.times_each:
            fields["timings"] = timings(step, step.num_generated_tokens)
        answer = answers.setdefault(step.index, _Answer())
        answer.collected.add(e for e in step.events if _is_shown(e, options))
        answer.logprobs += _step_logprobs(step, generation, options) or ()
        answer.token_ids += step.token_ids
        if step.finish_reason is not None:
            answer.finish_reason, answer.stop_reason = step.finish_reason, step.stop_reason
    return (TimedChatReply if options.times_each else ChatReply)(
        id=f"chatcmpl-{meta.request_id}",
        object="chat.completion",
        created=meta.created_s,
        model=meta.model,
        choices=[_choice(index, answers[index], options) for index in sorted(answers)],
        usage=counts.usage(),
        **options.extra_fields(counts),
        system_fingerprint=meta.fingerprint,
        **fields,
    )


def _choice(index: int, answer: _Answer, options: ChatResponseOptions) -> ChatChoice:
    logprobs = None
    if options.num_top_logprobs is not None:
        logprobs = ChatLogprobs(content=answer.logprobs)
    extras = {"token_ids": answer.token_ids} if options.shows_token_ids else {}
    return ChatChoice(
        index=index,
        message=message_of(answer.collected, options),
        logprobs=logprobs,
        finish_reason=answer.finish_reason,
        stop_reason=answer.stop_reason,
        **extras,
    )


def message_of(collected: Collected, options: ChatResponseOptions) -> ReplyMessage:
    """Return a complete answer as a message."""
    content = options.echo + collected.content
    fields: dict[str, Any] = {"refusal": None}
    if collected.reasoning:
        fields |= options.reasoning_fields(collected.reasoning)
    if collected.calls:
        fields["tool_calls"] = [_reply_call(call) for call in collected.calls]
    is_null = not content and bool(collected.calls)
    return ReplyMessage(role=options.role, content=None if is_null else content, **fields)


def _reply_call(call: CollectedCall) -> ReplyToolCall | ReplyCustomCall:
    if call.is_custom:
        custom = CallCustom(name=call.name, input=call.arguments)
        return ReplyCustomCall(id=call.call_id, type="custom", custom=custom)
    function = CallFunction(name=call.name, arguments=call.arguments)
    return ReplyToolCall(id=call.call_id, type="function", function=function)

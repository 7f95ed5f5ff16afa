"""Answers in Ollama's format: the lines of a stream, and the whole answer joined from them.

Source: Ollama's API reference. Format of a stream: a JSON object on each line, the last with `done`
true.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from dovetail.engine.client.results.outputs import RequestMetrics
from dovetail.interfaces.api import ApiError
from dovetail.server.endpoint import (
    AnswerEnd,
    Dialect,
    Framing,
    Problem,
    ResponseMeta,
    Step,
    chat_logprobs,
    engine_names,
    one_line,
)
from dovetail_plugins.apis._content_blocks import BlockChange, ContentBlock, ContentBlocks
from dovetail_plugins.apis.ollama.input import CHAT_NAMES, GENERATE_NAMES

NS_PER_S = 1_000_000_000
MEDIA_TYPE = "application/x-ndjson"
Fields = dict[str, Any]
_NOT_SERVED = re.compile(r'the model ("[^"]*") is(?= not served here)')


def finish_reason(end: AnswerEnd) -> str:
    """Return Ollama's finish reason: "stop" also for calls, if they are complete."""
    return "length" if end.cause == "stop" and end.is_unfinished else end.cause


CHAT = Dialect(finish_reason=finish_reason, field_names=engine_names(CHAT_NAMES))
GENERATE = Dialect(finish_reason=finish_reason, field_names=engine_names(GENERATE_NAMES))


@dataclass(slots=True, kw_only=True)
class ContentDelta:
    """The content of an answer, or of one step."""

    content: str = ""
    thinking: str = ""
    calls: list[Fields]
    logprobs: list[Fields]

    def __bool__(self) -> bool:
        return bool(self.content or self.thinking or self.calls or self.logprobs)

    def add(self, other: ContentDelta) -> None:
        """Append later content. Mutates: self"""
        self.content += other.content
        self.thinking += other.thinking
        self.calls += other.calls
        self.logprobs += other.logprobs


def empty_delta() -> ContentDelta:
    """Return an empty News."""
    return ContentDelta(calls=[], logprobs=[])


def as_message(news: ContentDelta) -> Fields:
    """Return the content in the format of /api/chat."""
    message: Fields = {"role": "assistant", "content": news.content}
    if news.thinking:
        message["thinking"] = news.thinking
    if news.calls:
        message["tool_calls"] = news.calls
    return {"message": message} | _logprobs(news)


def as_response(news: ContentDelta) -> Fields:
    """Return the content in the format of /api/generate."""
    thinking = {"thinking": news.thinking} if news.thinking else {}
    return {"response": news.content} | thinking | _logprobs(news)


def _logprobs(news: ContentDelta) -> Fields:
    return {"logprobs": news.logprobs} if news.logprobs else {}


Shape = Callable[[ContentDelta], Fields]


class OllamaAnswer:
    """One answer while it grows. `model` is the requested name, `began_ns` the arrival time
    (monotonic clock); `num_top` is None without logprobs. With `prompt_ids` the end has the ids of
    the whole conversation, as `context`."""

    def __init__(
        self,
        meta: ResponseMeta,
        shape: Shape,
        *,
        model: str,
        began_ns: int,
        num_top: int | None,
        shows_cached: bool,
        prompt_ids: Sequence[int] | None = None,
    ) -> None:
        self._meta = meta
        self._shape = shape
        self._model = model
        self._began_ns = began_ns
        self._num_top = num_top
        self._shows_cached = shows_cached
        self._context = None if prompt_ids is None else list(prompt_ids)
        self._blocks = ContentBlocks()
        self._num_calls = 0

    def take(self, step: Step) -> ContentDelta:
        """Return the content of a step. A call is emitted once its arguments are complete, and
        dropped if the answer ends within them. Mutates: self"""
        news = empty_delta()
        if self._context is not None:
            self._context += step.token_ids
        changes = self._blocks.feed(step.events)
        if step.finish_reason is not None:
            changes += self._blocks.finish()
        for change in changes:
            self._add(news, change)
        if self._num_top is not None and step.logprobs is not None:
            entries = chat_logprobs(step.logprobs, self._num_top, self._meta.names)
            news.logprobs += [entry.model_dump() for entry in entries]
        return news

    def _add(self, news: ContentDelta, change: BlockChange) -> None:
        kind = change.block.kind
        if kind == "call" and change.what == "closed" and not change.block.is_unfinished:
            news.calls.append(_call(change.block, self._num_calls))
            self._num_calls += 1
        elif kind == "text":
            news.content += change.text
        elif kind == "reasoning":
            news.thinking += change.text

    def fields(self, news: ContentDelta, last: Step | None = None) -> Fields:
        """Return one object of the answer; `last` is the step that ended it."""
        end = {} if last is None else self._end(last)
        return answer_fields(self._model, self._shape(news), end)

    def _end(self, step: Step) -> Fields:
        cached = {"prompt_eval_cached_count": step.num_cached_tokens}
        return {
            "done_reason": step.finish_reason,
            **({} if self._context is None else {"context": self._context}),
            "total_duration": time.monotonic_ns() - self._began_ns,
            "prompt_eval_count": step.num_prompt_tokens,
            **(cached if self._shows_cached else {}),
            "eval_count": step.num_generated_tokens,
            **_durations(step.metrics, self._began_ns),
        }


def answer_fields(model: str, said: Fields, end: Mapping[str, Any]) -> Fields:
    """Return an object of an answer; `end` is nonempty only in the last one."""
    return {"model": model, "created_at": now(), **said, "done": bool(end), **end}


def now() -> str:
    """Return the current time in Ollama's format."""
    return written_time(datetime.now(UTC))


def written_time(when: datetime) -> str:
    """Return a UTC time in Ollama's format (RFC 3339)."""
    return when.isoformat().replace("+00:00", "Z")


def _durations(metrics: RequestMetrics | None, began_ns: int) -> Fields:
    """Return the durations of waiting, prompt and answer in nanoseconds; none if they are unknown.
    As with Ollama, the first is the time until a model is ready."""
    if metrics is None or not metrics.first_scheduled_s or not metrics.first_token_s:
        return {"load_duration": 0}
    spans = {
        "load_duration": max(0.0, metrics.first_scheduled_s - began_ns / NS_PER_S),
        "prompt_eval_duration": metrics.first_token_s - metrics.first_scheduled_s,
        "eval_duration": metrics.last_token_s - metrics.first_token_s,
    }
    return {name: round(span_s * NS_PER_S) for name, span_s in spans.items()}


def _call(block: ContentBlock, index: int) -> Fields:
    function = {"index": index, "name": block.name, "arguments": block.arguments}
    return {"id": block.call_id, "function": function}


async def answer_lines(
    steps: AsyncIterator[Step], answer: OllamaAnswer
) -> AsyncGenerator[bytes, None]:
    """Yield the JSON of every line of a stream. Mutates: answer"""
    async for step in steps:
        news = answer.take(step)
        if news:
            yield encoded(answer.fields(news))
        if step.finish_reason is not None:
            yield encoded(answer.fields(empty_delta(), step))


async def whole_answer(steps: AsyncIterator[Step], answer: OllamaAnswer) -> bytes:
    """Return the JSON of the whole answer: its stream, joined. Mutates: answer"""
    said, last = empty_delta(), None
    async for step in steps:
        said.add(answer.take(step))
        if step.finish_reason is not None:
            last = step
    return encoded(answer.fields(said, last))


def encoded(fields: Fields) -> bytes:
    """Return an object as JSON, with lone surrogates replaced."""
    return one_line(json.dumps(fields, ensure_ascii=False).encode("utf-8", "replace"))


def line(data: bytes) -> bytes:
    """Return an object as a line of a stream."""
    return data + b"\n"


def error_body(status: int, error: ApiError, request_id: str | None) -> bytes:
    """Return Ollama's JSON error body, with the wording that its clients look for."""
    return encoded({"error": _NOT_SERVED.sub(r"model \1 not found: it is", error.message)})


def framing(answer: OllamaAnswer) -> Framing:
    """Return the framing of a stream of lines. An empty line object keeps the connection open; an
    error is the last line."""

    def error(found: Problem) -> bytes:
        return line(error_body(found.status, found.info, None))

    return Framing(
        frame=line,
        end=b"",
        error=error,
        keep_alive=lambda: line(encoded(answer.fields(empty_delta()))),
        media_type=MEDIA_TYPE,
    )

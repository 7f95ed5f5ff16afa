"""Answers in llama.cpp's format: the events of a stream, and the whole answer joined from them.

Source: the API page of llama.cpp's server, /completion.
"""

from __future__ import annotations

import json
import math
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dovetail.engine.client.results.logprobs import finite
from dovetail.interfaces.data.step import TokenLogprobs
from dovetail.server.endpoint import (
    AnswerEnd,
    Dialect,
    Framing,
    Step,
    TokenNames,
    data_frame,
    engine_names,
)
from dovetail_plugins.apis._llama_timings import progress, timings
from dovetail_plugins.apis.llamacpp.errors import error_body
from dovetail_plugins.apis.llamacpp.limits import LIMIT

EOS, WORD = "eos", "word"
Fields = dict[str, Any]
Numbered = tuple[int, Step]


def stop_type(end: AnswerEnd) -> str:
    """Return llama.cpp's word for how an answer ended."""
    if end.cause != "stop":
        return LIMIT
    return WORD if end.is_stop_text else EOS


LLAMA = Dialect(
    finish_reason=stop_type,
    field_names=engine_names({"messages": "prompt", "logprobs": "n_probs"}),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What the answers of a request show. `prompts` and `slots` are those of each prompt, and each
    has `n` answers. `num_context` is the model's context length; `hides_answer`: nothing was to be
    generated."""

    model: str
    names: TokenNames
    prompts: Sequence[str]
    slots: Sequence[int]
    settings: Mapping[str, Any]
    n: int = 1
    num_context: int
    num_probs: int = 0
    is_after_sampling: bool = False
    is_stream: bool = False
    returns_tokens: bool = False
    times_each: bool = False
    shows_progress: bool = False
    hides_answer: bool = False
    fields: Sequence[str] | None = None


@dataclass(slots=True, kw_only=True)
class Answer:
    """One answer while it grows."""

    shown: Shown
    which: int
    index: int
    content: list[str] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    probabilities: list[Fields] = field(default_factory=list)
    num_tokens: int = 0

    def take(self, step: Step) -> Fields | None:
        """Return the event of a step; None if it has nothing new. Mutates: self"""
        if self.shown.hides_answer:
            return None
        found = [_probability(one, self.shown) for one in step.logprobs or ()]
        self.num_tokens += len(step.token_ids)
        self.content.append(step.text)
        self.tokens += step.token_ids
        self.probabilities += found
        if not step.text and not step.token_ids:
            return None
        event = self._head(step.text, list(step.token_ids), stop=False)
        event |= self._counts(step)
        if self.shown.num_probs:
            event["completion_probabilities"] = found
        if self.shown.times_each:
            event["timings"] = timings(step, self.num_tokens)
        return event

    def progress(self, step: Step) -> Fields:
        """Return the event that says how much of the prompt is processed: all of it, before the
        first token."""
        event = self._head("", [], stop=False) | self._counts(step)
        event["prompt_progress"] = progress(step)
        if self.shown.times_each:
            event["timings"] = timings(step, 0)
        return event

    def end(self, step: Step) -> Fields:
        """Return the last event, which a whole answer is, too; it has the content there."""
        shown = self.shown
        text = "".join(self.content)
        reason = LIMIT if shown.hides_answer else step.finish_reason
        num_all = step.num_prompt_tokens + self.num_tokens
        event = self._head("" if shown.is_stream else text, [], stop=True)
        if shown.returns_tokens and not shown.is_stream:
            event["tokens"] = self.tokens
        if shown.num_probs and not shown.is_stream:
            event["completion_probabilities"] = self.probabilities
        return event | self._counts(step) | {
            "model": shown.model,
            "generation_settings": shown.settings,
            "prompt": shown.prompts[self.which],
            "has_new_line": "\n" in text,
            "truncated": reason == LIMIT and num_all >= shown.num_context,
            "stop_type": reason,
            "stopping_word": step.stop_reason if reason == WORD else "",
            "tokens_cached": step.num_cached_tokens,
            "timings": timings(step, self.num_tokens),
        }  # fmt: skip

    def _head(self, content: str, tokens: list[int], *, stop: bool) -> Fields:
        slot = self.shown.slots[self.which]
        return {
            "index": self.index, "content": content, "tokens": tokens, "stop": stop, "id_slot": slot
        }  # fmt: skip

    def _counts(self, step: Step) -> Fields:
        return {"tokens_predicted": self.num_tokens, "tokens_evaluated": step.num_prompt_tokens}


def _probability(position: TokenLogprobs, shown: Shown) -> Fields:
    """Return one token with the most likely ones at its place."""
    tops = list(zip(position.top_ids, position.top_logprobs, strict=True))[: shown.num_probs]
    if shown.is_after_sampling:
        tops = [(token_id, logprob) for token_id, logprob in tops if math.exp(logprob) > 0]
    pairs = [(position.token_id, position.logprob), *tops]
    ids = [token_id for token_id, _ in pairs]
    numbers = [
        {"prob": math.exp(logprob)} if shown.is_after_sampling else {"logprob": finite(logprob)}
        for _, logprob in pairs
    ]
    drawn, *others = [
        {"id": token_id, "token": text, "bytes": data, **number}
        for token_id, text, data, number in zip(
            ids, shown.names.of(ids), shown.names.bytes_of(ids), numbers, strict=True
        )
    ]
    return {**drawn, "top_probs" if shown.is_after_sampling else "top_logprobs": others}


class Answers:
    """The answers of a request while they grow, in the order of its prompts."""

    def __init__(self, shown: Shown) -> None:
        self._shown = shown
        self._found: dict[int, Answer] = {}

    def of(self, which: int, step: Step) -> tuple[Answer, bool]:
        """Return (the answer that a step belongs to, whether this is its first step)."""
        index = which * self._shown.n + step.index
        known = self._found.get(index)
        if known is None:
            known = self._found[index] = Answer(shown=self._shown, which=which, index=index)
            return known, True
        return known, False


async def events(steps: AsyncIterator[Numbered], shown: Shown) -> AsyncGenerator[bytes, None]:
    """Yield the JSON of every event of a stream."""
    answers = Answers(shown)
    async for which, step in steps:
        answer, is_first = answers.of(which, step)
        if is_first and shown.shows_progress:
            yield encoded(answer.progress(step))
        event = answer.take(step)
        if event is not None:
            yield encoded(event)
        if step.finish_reason is not None:
            yield encoded(selected(answer.end(step), shown.fields))


async def whole(steps: AsyncIterator[Numbered], shown: Shown) -> bytes:
    """Return the JSON of the whole answers: one as an object, several as a list."""
    answers, ends = Answers(shown), dict[int, Fields]()
    async for which, step in steps:
        answer, _ = answers.of(which, step)
        answer.take(step)
        if step.finish_reason is not None:
            ends[answer.index] = selected(answer.end(step), shown.fields)
    ordered = [ends[index] for index in sorted(ends)]
    return encoded(ordered[0] if len(ordered) == 1 else ordered)


def selected(event: Fields, paths: Sequence[str] | None) -> Fields:
    """Return only these fields of an answer; None or none: all. A path leads into an object; what
    is not there is left out."""
    if not paths:
        return event
    found: Fields = {}
    for path in paths:
        value: Any = event
        for name in path.split("/"):
            value = value.get(name, _ABSENT) if isinstance(value, Mapping) else _ABSENT
        if value is not _ABSENT:
            found[path] = value
    return found


_ABSENT = object()


def encoded(value: Any) -> bytes:
    """Return a value as JSON, with lone surrogates replaced."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "replace")


FRAMING = Framing(
    end=b"",
    error=lambda found: data_frame(error_body(found.status, found.info)),
)
"""Events without a mark at the end: the last one has `stop`."""

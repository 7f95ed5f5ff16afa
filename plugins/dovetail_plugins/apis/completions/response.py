"""Completions in OpenAI's format: stream chunks, and the whole body joined from them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from dovetail.interfaces.data.step import TokenLogprobs
from dovetail.server.endpoint import (
    Dialect,
    ResponseMeta,
    Step,
    prompt_logprobs,
)
from dovetail_plugins.apis.completions.logprobs import (
    CompletionColumns,
    TextPlace,
    completion_columns,
    prompt_offsets,
)
from dovetail_plugins.apis.completions.protocol import (
    CompletionChoice,
    CompletionLogprobs,
    CompletionReply,
)
from dovetail_plugins.usage import StreamUsage, UsageCounter

COMPLETIONS = Dialect(finish_reason=lambda end: end.cause)

Numbered = tuple[int, Step]
"""The index of a prompt in the request, and a step of its answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionResponseOptions:
    """Options of a completion response. `prompts` has each prompt's text and ids."""

    n: int
    prompts: Sequence[tuple[str, Sequence[int]]]
    num_top_logprobs: int | None = None
    echoes: bool = False
    hides_answer: bool = False
    skips_special: bool = True
    shows_token_ids: bool = False
    stream_usage: StreamUsage = "never"
    shows_cached: bool = False
    shows_prompt_logprobs: bool = False
    shows_timings: bool = False

    def extra_fields(self, counts: UsageCounter) -> dict[str, Any]:
        """Return the answer's fields besides its text: its timings if shown, and the KV transfer
        params with which another engine can continue."""
        times = {"metrics": counts.timings()} if self.shows_timings else {}
        return times | ({"kv_transfer_params": counts.transfer} if counts.transfer else {})


class CompletionPieces:
    """Converts steps to pieces of choices, tracking each choice's text offset."""

    def __init__(self, meta: ResponseMeta, options: CompletionResponseOptions) -> None:
        self._meta = meta
        self._options = options
        self._places: dict[int, TextPlace] = {}

    def piece(self, which: int, step: Step) -> CompletionChoice:
        """Return a step as a piece of its choice. Mutates: the choice's offset"""
        index = which * self._options.n + step.index
        is_first = index not in self._places
        text = "" if self._options.hides_answer else step.text
        fields: dict[str, Any] = {"logprobs": None}
        columns = self._columns(which, index, step, is_first)
        if columns is not None:
            fields["logprobs"] = columns
        if is_first:
            fields |= self._prompt_fields(which, step)
            if self._options.echoes:
                text = self._options.prompts[which][0] + text
        if self._options.shows_token_ids:
            fields["token_ids"] = list(step.token_ids)
        if step.finish_reason is not None:
            fields["stop_reason"] = step.stop_reason
        return CompletionChoice(index=index, text=text, finish_reason=self._reason(step), **fields)

    def _reason(self, step: Step) -> str | None:
        is_hidden = self._options.hides_answer and step.finish_reason is not None
        return "length" if is_hidden else step.finish_reason

    def _columns(
        self, which: int, index: int, step: Step, is_first: bool
    ) -> CompletionLogprobs | None:
        place = self._place(which, index)
        num_top = self._options.num_top_logprobs
        if num_top is None:
            return None
        positions: list[TokenLogprobs | None] = []
        ids: list[int] = []
        offsets: list[int] = []
        names, (text, prompt_ids) = self._meta.names, self._options.prompts[which]
        if is_first and self._options.echoes:
            positions += [None, *(step.prompt_logprobs or ())]
            ids += prompt_ids
            offsets += prompt_offsets(names.tokenizer, text, prompt_ids)
            positions += [None] * (len(ids) - len(positions))
        if not self._options.hides_answer:
            positions += step.logprobs or ()
            ids += step.token_ids
            offsets += place.offsets(step.token_ids)
        return _logprobs(completion_columns(positions, ids, num_top, names, offsets))

    def _place(self, which: int, index: int) -> TextPlace:
        """Return the offset tracker of a choice, created at its first step. Mutates: self"""
        if index in self._places:
            return self._places[index]
        text, prompt_ids = self._options.prompts[which]
        self._places[index] = TextPlace(
            self._meta.names.tokenizer,
            prompt_ids,
            start=len(text) if self._options.echoes else 0,
            skips_special=self._options.skips_special,
        )
        return self._places[index]

    def _prompt_fields(self, which: int, step: Step) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        if self._options.shows_token_ids:
            fields["prompt_token_ids"] = list(self._options.prompts[which][1])
        if self._options.shows_prompt_logprobs and step.prompt_logprobs is not None:
            fields["prompt_logprobs"] = prompt_logprobs(step.prompt_logprobs, self._meta.names)
        return fields


def _logprobs(columns: CompletionColumns) -> CompletionLogprobs:
    return CompletionLogprobs(
        text_offset=columns.text_offset,
        token_logprobs=columns.token_logprobs,
        tokens=columns.tokens,
        top_logprobs=columns.top_logprobs,
    )


def _body(
    meta: ResponseMeta, choices: list[CompletionChoice], fields: dict[str, Any]
) -> CompletionReply:
    return CompletionReply(
        id=f"cmpl-{meta.request_id}",
        object="text_completion",
        created=meta.created_s,
        model=meta.model,
        choices=choices,
        system_fingerprint=meta.fingerprint,
        **fields,
    )


async def completion_chunks(
    steps: AsyncIterator[Numbered], meta: ResponseMeta, options: CompletionResponseOptions
) -> AsyncGenerator[bytes, None]:
    """Yield the JSON of every chunk of a stream."""
    pieces = CompletionPieces(meta, options)
    counts = UsageCounter(shows_cached=options.shows_cached)
    async for which, step in steps:
        counts.note(step, which)
        piece = pieces.piece(which, step)
        if not _says_something(piece):
            continue
        fields: dict[str, Any] = {}
        if options.stream_usage == "always":
            fields["usage"] = counts.usage()
        elif options.stream_usage == "at_end":
            fields["usage"] = None
        yield _body(meta, [piece], fields).model_dump_json(exclude_unset=True).encode()
    if options.stream_usage != "never" or counts.transfer:
        usage = {"usage": counts.usage(), **options.extra_fields(counts)}
        yield _body(meta, [], usage).model_dump_json(exclude_unset=True).encode()


def _says_something(piece: CompletionChoice) -> bool:
    has_tokens = bool(piece.token_ids) or bool(piece.logprobs and piece.logprobs.tokens)
    return bool(piece.text) or has_tokens or piece.finish_reason is not None


async def completion_body(
    steps: AsyncIterator[Numbered], meta: ResponseMeta, options: CompletionResponseOptions
) -> CompletionReply:
    """Return the whole answer: its stream, joined."""
    pieces = CompletionPieces(meta, options)
    counts = UsageCounter(shows_cached=options.shows_cached)
    choices: dict[int, CompletionChoice] = {}
    async for which, step in steps:
        counts.note(step, which)
        piece = pieces.piece(which, step)
        known = choices.get(piece.index)
        choices[piece.index] = piece if known is None else _joined(known, piece)
    ordered = [choices[index] for index in sorted(choices)]
    return _body(meta, ordered, {"usage": counts.usage(), **options.extra_fields(counts)})


def _joined(first: CompletionChoice, second: CompletionChoice) -> CompletionChoice:
    """Return two pieces of one choice, joined. Mutates: first"""
    first.text += second.text
    first.finish_reason = second.finish_reason
    first.stop_reason = second.stop_reason
    if second.token_ids is not None:
        first.token_ids = [*(first.token_ids or ()), *second.token_ids]
    if first.logprobs is not None and second.logprobs is not None:
        first.logprobs.text_offset += second.logprobs.text_offset
        first.logprobs.token_logprobs += second.logprobs.token_logprobs
        first.logprobs.tokens += second.logprobs.tokens
        first.logprobs.top_logprobs += second.logprobs.top_logprobs
    return first

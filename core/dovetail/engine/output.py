"""OutputProcessor: engine updates as text, deltas and numbers, in the API process.

Merges the n completions of a request, finds stop strings and tells which engine requests they
end. Knows no transport and no HTTP; AsyncEngine and SyncEngine drive it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from dovetail.engine.detokenizer import Detokenizer
from dovetail.engine.input import PreparedRequest
from dovetail.engine.logprobs import shaped
from dovetail.engine.messages import RequestUpdate
from dovetail.engine.outputs import (
    CompletionDelta,
    PromptLogprobs,
    RequestMetrics,
    RequestOutput,
)
from dovetail.errors import DovetailError, RequestError, RequestFault
from dovetail.interfaces.stats import RequestStats
from dovetail.interfaces.step import TokenLogprobs
from dovetail.interfaces.tokenizer import Tokenizer


class _Child:
    """One of a request's n completions on its way to text."""

    __slots__ = ("detokenizer", "finish_reason", "index", "request_id")

    def __init__(self, request_id: str, index: int, detokenizer: Detokenizer) -> None:
        self.request_id = request_id
        self.index = index
        self.detokenizer = detokenizer
        self.finish_reason: str | None = None


class LiveRequest:
    """One client's request that is not finished. `key` is what the caller knows it by."""

    def __init__(self, key: int, prepared: PreparedRequest, tokenizer: Tokenizer) -> None:
        self.key = key
        self.request_id = prepared.request_id
        self.prompt_ids = prepared.prompt_ids
        self.params = prepared.params
        self.arrival_s = prepared.arrival_s
        self.num_cached_tokens = 0
        self.scheduled_s = 0.0
        self.first_token_s = 0.0
        self.last_token_s = 0.0
        self.gaps_s: list[float] = []
        self.children = [
            _Child(request.request_id, index, self._detokenizer(tokenizer))
            for index, request in enumerate(prepared.requests)
        ]

    def _detokenizer(self, tokenizer: Tokenizer) -> Detokenizer:
        return Detokenizer(tokenizer, self.prompt_ids, self.params)

    @property
    def is_finished(self) -> bool:
        """Return whether every completion has its finish reason."""
        return all(child.finish_reason is not None for child in self.children)

    def unfinished_ids(self) -> tuple[str, ...]:
        """Return the engine's ids of the completions still running."""
        return tuple(c.request_id for c in self.children if c.finish_reason is None)

    def note_times(self, update: RequestUpdate) -> None:
        """Record when this update's tokens were drawn. Mutates: times, gaps_s

        Tokens that came together share the time since the one before them.
        """
        self.num_cached_tokens = max(self.num_cached_tokens, update.num_cached_tokens)
        timings = update.timings
        if not self.scheduled_s:
            self.scheduled_s = timings.scheduled_s
        if not update.token_ids:
            return
        if self.first_token_s:
            count = len(update.token_ids)
            self.gaps_s += [(timings.updated_s - self.last_token_s) / count] * count
        else:
            self.first_token_s = timings.updated_s
        self.last_token_s = timings.updated_s

    def metrics(self) -> RequestMetrics:
        """Return the times known so far."""
        return RequestMetrics(
            arrival_s=self.arrival_s,
            first_scheduled_s=self.scheduled_s,
            first_token_s=self.first_token_s,
            last_token_s=self.last_token_s,
        )

    def stats(self) -> RequestStats:
        """Return the finished request's numbers."""
        now_s = time.monotonic()
        first_s = self.first_token_s or now_s
        scheduled_s = self.scheduled_s or first_s
        return RequestStats(
            request_id=self.request_id,
            finish_reason=self.children[0].finish_reason or "abort",
            prompt_tokens=len(self.prompt_ids),
            generated_tokens=sum(c.detokenizer.num_tokens for c in self.children),
            cached_tokens=self.num_cached_tokens,
            max_tokens=self.params.max_tokens or 0,
            n=self.params.n,
            queue_s=max(0.0, scheduled_s - self.arrival_s),
            prefill_s=max(0.0, first_s - scheduled_s),
            decode_s=max(0.0, self.last_token_s - first_s),
            ttft_s=max(0.0, first_s - self.arrival_s),
            e2e_s=max(0.0, now_s - self.arrival_s),
            inter_token_s=tuple(self.gaps_s),
        )


@dataclass(slots=True, kw_only=True)
class Processed:
    """What a batch of updates came to, per caller's key. `aborts` are engine ids to end."""

    outputs: list[tuple[int, RequestOutput]] = field(default_factory=list)
    errors: list[tuple[int, DovetailError]] = field(default_factory=list)
    aborts: list[str] = field(default_factory=list)
    stats: list[RequestStats] = field(default_factory=list)


class OutputProcessor:
    """All requests of one API process that are not finished."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._live: dict[int, LiveRequest] = {}
        self._owners: dict[str, tuple[LiveRequest, _Child]] = {}

    def __len__(self) -> int:
        return len(self._live)

    @property
    def num_unfinished(self) -> int:
        """Return the completions that are not finished."""
        return len(self._owners)

    def add(self, key: int, prepared: PreparedRequest) -> LiveRequest:
        """Expect updates of a request. `key` is the caller's, unique among live requests."""
        live = LiveRequest(key, prepared, self._tokenizer)
        self._live[key] = live
        for child in live.children:
            self._owners[child.request_id] = (live, child)
        return live

    def unfinished_ids(self, key: int) -> tuple[str, ...]:
        """Return the engine's ids of what a request still has running."""
        live = self._live.get(key)
        return () if live is None else live.unfinished_ids()

    def drop(self, key: int) -> tuple[tuple[str, ...], RequestStats | None]:
        """Forget a request; return the engine ids to abort, and its numbers if it was live."""
        live = self._live.pop(key, None)
        if live is None:
            return (), None
        ids = live.unfinished_ids()
        for request_id in ids:
            self._owners.pop(request_id, None)
        return ids, live.stats()

    def process(self, updates: Sequence[RequestUpdate]) -> Processed:
        """Return what these updates come to. A fault of one request touches no other."""
        processed = Processed()
        for update in updates:
            owner = self._owners.get(update.request_id)
            if owner is None:
                continue  # ended here already; the engine will have heard or soon hears
            live, child = owner
            try:
                self._take(live, child, update, processed)
            except Exception as error:
                fault = RequestFault(f"{type(error).__name__}: {error}", where=live.request_id)
                fault.__cause__ = error
                self._fail(live, fault, processed)
        return processed

    def _take(
        self, live: LiveRequest, child: _Child, update: RequestUpdate, processed: Processed
    ) -> None:
        live.note_times(update)
        if update.error is not None:
            self._owners.pop(child.request_id)
            child.finish_reason = "error"
            self._fail(live, _error_of(update, live.request_id), processed)
            return
        delta = _delta_of(live, child, update)
        if child.finish_reason is not None:
            self._owners.pop(child.request_id)
            if update.finish_reason is None:
                processed.aborts.append(child.request_id)
        prompt_logprobs = update.prompt_logprobs
        output = _output_of(
            live, delta, None if prompt_logprobs is None else shaped(prompt_logprobs)
        )
        processed.outputs.append((live.key, output))
        if output.is_finished:
            self._live.pop(live.key, None)
            processed.stats.append(live.stats())

    def _fail(self, live: LiveRequest, error: DovetailError, processed: Processed) -> None:
        """End the whole request with an error, its other completions too."""
        live.children[0].finish_reason = "error"
        for child in live.children:
            if self._owners.pop(child.request_id, None) is not None:
                processed.aborts.append(child.request_id)
        self._live.pop(live.key, None)
        processed.errors.append((live.key, error))
        processed.stats.append(live.stats())


def _delta_of(live: LiveRequest, child: _Child, update: RequestUpdate) -> CompletionDelta:
    """Return the news of one completion. Mutates: child"""
    detokenizer = child.detokenizer
    pieces: list[str] = []
    num_taken = 0
    hidden = _hidden_position(live, update)
    for token_id in update.token_ids:
        pieces.append(detokenizer.push(token_id, is_shown=num_taken != hidden))
        num_taken += 1
        if detokenizer.matched is not None:
            break
    if update.finish_reason is not None and detokenizer.matched is None:
        pieces.append(detokenizer.flush())
    is_matched = detokenizer.matched is not None
    child.finish_reason = "stop" if is_matched else update.finish_reason
    return CompletionDelta(
        index=child.index,
        text="".join(pieces),
        token_ids=update.token_ids[:num_taken],
        logprobs=_logprobs_of(live, update, num_taken),
        finish_reason=child.finish_reason,
        stop_reason=detokenizer.matched if is_matched else update.stop_reason,
    )


def _hidden_position(live: LiveRequest, update: RequestUpdate) -> int:
    """Return the position of the stop token, whose text is not shown; -1 when there is none."""
    if update.finish_reason != "stop" or live.params.include_stop_str_in_output:
        return -1
    return len(update.token_ids) - 1


def _logprobs_of(
    live: LiveRequest, update: RequestUpdate, num_taken: int
) -> tuple[TokenLogprobs, ...] | None:
    if live.params.logprobs is None:
        return None
    return shaped(update.logprobs[:num_taken])


def _output_of(
    live: LiveRequest, delta: CompletionDelta, prompt_logprobs: PromptLogprobs | None
) -> RequestOutput:
    return RequestOutput(
        request_id=live.request_id,
        prompt_token_ids=live.prompt_ids,
        deltas=(delta,),
        is_finished=live.is_finished,
        prompt_logprobs=prompt_logprobs,
        num_cached_tokens=live.num_cached_tokens,
        metrics=live.metrics(),
    )


def _error_of(update: RequestUpdate, request_id: str) -> DovetailError:
    """Return the exception an engine's error becomes for the caller."""
    what = update.error or "the engine gave no reason."
    if update.error_status < 500:
        return RequestError(
            what, where=request_id, code=update.error_code, status=update.error_status
        )
    return RequestFault(what, where=request_id)

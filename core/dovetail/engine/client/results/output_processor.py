"""OutputProcessor: turns engine updates into text, deltas and statistics, in the API process.

Merges the n completions of a request, finds stop strings, and returns the engine requests that they
end. Knows nothing of transport or HTTP; used by AsyncEngine and SyncEngine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from dovetail.engine.client.pooling.pieces import PieceVectors
from dovetail.engine.client.requests.input_processor import PreparedRequest
from dovetail.engine.client.results.clock import RequestClock
from dovetail.engine.client.results.detokenizer import Detokenizer
from dovetail.engine.client.results.logprobs import shaped
from dovetail.engine.client.results.outputs import (
    CompletionDelta,
    PromptLogprobs,
    RequestOutput,
    joined,
)
from dovetail.engine.client.results.stop import TextWatch
from dovetail.engine.messages import RequestUpdate
from dovetail.errors import DovetailError, EngineAsleep, RequestError, RequestFault
from dovetail.interfaces.data.step import Pooled, TokenLogprobs
from dovetail.interfaces.stats import Caller, RequestStats, TokenStats
from dovetail.registry.blame import described

MEMORY = 1 / 32
"""The weight of a new prompt in the moving average of prompt lengths."""


class _Child:
    """One of a request's n completions."""

    __slots__ = ("detokenizer", "finish_reason", "index", "request_id")

    def __init__(self, request_id: str, index: int, detokenizer: Detokenizer) -> None:
        self.request_id = request_id
        self.index = index
        self.detokenizer = detokenizer
        self.finish_reason: str | None = None


class LiveRequest:
    """One client's unfinished request. `key` is the caller's key for it; with `is_whole` the caller
    gets one output, at the end.

    `deltas` and `prompt_logprobs` are new output that the caller has not received yet.
    """

    def __init__(
        self,
        key: int,
        prepared: PreparedRequest,
        caller: Caller | None,
        watch: Callable[[], TextWatch] | None,
        *,
        is_whole: bool,
    ) -> None:
        self.key = key
        self.is_whole = is_whole
        self.deltas: list[CompletionDelta] = []
        self.prompt_logprobs: PromptLogprobs | None = None
        self.request_id = prepared.request_id
        self.prompt_ids = prepared.prompt_ids
        self.params = prepared.params
        self.clock = RequestClock(prepared.arrival_s, len(prepared.requests))
        self.num_cached_tokens = 0
        self.transfer: dict[str, Any] | None = None
        self.has_token = False
        self.is_pending = True
        self.error = ""
        self.pieces: PieceVectors | None = None
        if prepared.are_pieces:
            lengths = [len(request.prompt_ids) for request in prepared.requests]
            self.pieces = PieceVectors(lengths, is_normalized=prepared.has_length_1)
        self._caller = caller
        self._cache_key = prepared.cache_key
        self.children = [
            _Child(
                request.request_id,
                index,
                Detokenizer(
                    prepared.tokenizer, self.prompt_ids, self.params, watch() if watch else None
                ),
            )
            for index, request in enumerate(prepared.requests)
        ]

    @property
    def is_finished(self) -> bool:
        """Return whether every completion has finished."""
        return all(child.finish_reason is not None for child in self.children)

    def unfinished_ids(self) -> tuple[str, ...]:
        """Return the engine ids of the unfinished completions."""
        return tuple(c.request_id for c in self.children if c.finish_reason is None)

    def stats(self, engine: int) -> RequestStats:
        """Return the request's statistics, finishing now in engine number `engine`."""
        now_s = time.monotonic()
        clock = self.clock
        first_s = clock.first_token_s or now_s
        scheduled_s = clock.scheduled_s or first_s
        counts = [child.detokenizer.num_tokens for child in self.children]
        reasons = tuple(child.finish_reason or "abort" for child in self.children)
        return RequestStats(
            request_id=self.request_id,
            finish_reason="error" if self.error else reasons[0],
            finish_reasons=reasons,
            error=self.error,
            prompt_tokens=len(self.prompt_ids),
            generated_tokens=sum(counts),
            longest_tokens=max(counts),
            cached_tokens=self.num_cached_tokens,
            max_tokens=self.params.max_tokens or 0,
            n=self.params.n,
            sampling=self.params,
            queue_s=max(0.0, scheduled_s - clock.arrival_s),
            prefill_s=max(0.0, first_s - scheduled_s),
            decode_s=max(0.0, clock.last_token_s - first_s),
            ttft_s=max(0.0, first_s - clock.arrival_s),
            e2e_s=max(0.0, now_s - clock.arrival_s),
            inter_token_s=tuple(clock.gaps_s),
            times=clock.times(now_s),
            forward_s=clock.forward_s,
            execute_s=clock.execute_s,
            caller=self._caller,
            engine=engine,
            prompt_ids=self.prompt_ids,
            cache_key=self._cache_key,
        )


@dataclass(slots=True, kw_only=True)
class Processed:
    """The results of a batch of updates, by the caller's keys. `aborts` are engine ids to abort.

    The counts are of tokens as clients count them: see TokenStats.
    """

    outputs: list[tuple[int, RequestOutput]] = field(default_factory=list)
    errors: list[tuple[int, DovetailError]] = field(default_factory=list)
    aborts: list[str] = field(default_factory=list)
    stats: list[RequestStats] = field(default_factory=list)
    num_prompt_tokens: int = 0
    num_generated_tokens: int = 0
    engine: int = 0

    def tokens(self) -> TokenStats | None:
        """Return the token counts of this batch, or None if there are none."""
        if not self.num_generated_tokens and not self.num_prompt_tokens:
            return None
        return TokenStats(
            prompt_tokens=self.num_prompt_tokens,
            generated_tokens=self.num_generated_tokens,
            engine=self.engine,
        )


class OutputProcessor:
    """All requests of one API process that one engine has not finished.

    `pending_tokens` are the prompt tokens of requests without a first token, `num_unstarted` their
    completions; `mean_prompt_tokens` is the mean length of recent prompts. `clock_lead_s` is how
    far the engine's clock is ahead of this process's.
    """

    def __init__(self, *, engine: int = 0) -> None:
        self.pending_tokens = 0
        self.num_unstarted = 0
        self.mean_prompt_tokens = 0.0
        self.clock_lead_s = 0.0
        self._engine = engine
        self._live: dict[int, LiveRequest] = {}
        self._owners: dict[str, tuple[LiveRequest, _Child]] = {}

    def __len__(self) -> int:
        return len(self._live)

    @property
    def num_unfinished(self) -> int:
        """Return the number of unfinished completions."""
        return len(self._owners)

    def add(
        self,
        key: int,
        prepared: PreparedRequest,
        caller: Caller | None = None,
        watch: Callable[[], TextWatch] | None = None,
        *,
        is_whole: bool = False,
    ) -> LiveRequest:
        """Expect updates of a request. `key` is the caller's, unique among live requests. `watch`
        creates what finds the end of its completions, instead of a search for stop strings. With
        `is_whole` there is one output, at the end."""
        live = LiveRequest(key, prepared, caller, watch, is_whole=is_whole)
        self._live[key] = live
        for child in live.children:
            self._owners[child.request_id] = (live, child)
        num_tokens = len(live.prompt_ids)
        self.pending_tokens += num_tokens
        self.num_unstarted += len(live.children)
        weight = MEMORY if self.mean_prompt_tokens else 1.0
        self.mean_prompt_tokens += weight * (num_tokens - self.mean_prompt_tokens)
        return live

    def _settle(self, live: LiveRequest) -> None:
        """Count a request as started or finished. Mutates: self, live"""
        if live.is_pending:
            live.is_pending = False
            self.pending_tokens -= len(live.prompt_ids)
            self.num_unstarted -= len(live.children)

    def unfinished_ids(self, key: int) -> tuple[str, ...]:
        """Return the engine ids of a request's unfinished completions."""
        live = self._live.get(key)
        return () if live is None else live.unfinished_ids()

    def drop(
        self, key: int, error: str | None = None
    ) -> tuple[tuple[str, ...], RequestStats | None]:
        """Forget a request; return the engine ids to abort, and its statistics if it was live.

        `error` is why it ends, None if its client ended it.
        """
        live = self._live.pop(key, None)
        if live is None:
            return (), None
        self._settle(live)
        ids = live.unfinished_ids()
        for request_id in ids:
            self._owners.pop(request_id, None)
        if error is not None:
            live.error = error
            for child in live.children:
                child.finish_reason = child.finish_reason or "error"
        return ids, live.stats(self._engine)

    def process(self, updates: Sequence[RequestUpdate]) -> Processed:
        """Return the results of these updates. A failing request does not affect others."""
        processed = Processed(engine=self._engine)
        for update in updates:
            owner = self._owners.get(update.request_id)
            if owner is None:
                continue  # already finished here; the engine knows or will soon
            live, child = owner
            try:
                self._take(live, child, update, processed)
            except Exception as error:
                fault = RequestFault(described(error), where=live.request_id)
                fault.__cause__ = error
                self._fail(live, fault, processed)
        return processed

    def _take(
        self, live: LiveRequest, child: _Child, update: RequestUpdate, processed: Processed
    ) -> None:
        live.clock.note(update, self.clock_lead_s)
        if child.index == 0 or live.pieces is not None:  # others find what the first computes
            live.num_cached_tokens = max(live.num_cached_tokens, update.num_cached_tokens)
        live.transfer = update.transfer or live.transfer
        if update.error is not None:
            self._owners.pop(child.request_id)
            self._fail(live, _error_of(update, live.request_id), processed)
            return
        delta = _delta_of(live, child, update)
        self._count(live, child, len(delta.token_ids), update, processed)
        if child.finish_reason is not None:
            self._owners.pop(child.request_id)
            if update.finish_reason is None:
                processed.aborts.append(child.request_id)
        pooled = update.pooled
        if live.pieces is not None and pooled is not None:
            pooled = live.pieces.take(child.index, pooled)
            if pooled is None:
                return  # wait for the prompt's other pieces
        live.deltas.append(delta)
        if update.prompt_logprobs is not None:
            live.prompt_logprobs = shaped(update.prompt_logprobs)
        if live.is_whole and not live.is_finished:
            return
        output = _output_of(live, pooled)
        processed.outputs.append((live.key, output))
        if output.is_finished:
            self._live.pop(live.key, None)
            self._settle(live)
            processed.stats.append(live.stats(self._engine))

    def _count(
        self,
        live: LiveRequest,
        child: _Child,
        num_tokens: int,
        update: RequestUpdate,
        processed: Processed,
    ) -> None:
        """Record the number and time of new tokens. Mutates: live, processed"""
        if not num_tokens and update.pooled is None:
            return
        now_s = update.timings.updated_s - self.clock_lead_s
        live.clock.note_tokens(child.index, num_tokens, now_s)
        processed.num_generated_tokens += num_tokens
        if not live.has_token:
            live.has_token = True
            self._settle(live)
            processed.num_prompt_tokens += len(live.prompt_ids)

    def _fail(self, live: LiveRequest, error: DovetailError, processed: Processed) -> None:
        """Fail the whole request, including its other completions."""
        if live.deltas:
            processed.outputs.append((live.key, _output_of(live, None)))
        live.error = error.what
        for child in live.children:
            child.finish_reason = child.finish_reason or "error"
            if self._owners.pop(child.request_id, None) is not None:
                processed.aborts.append(child.request_id)
        self._live.pop(live.key, None)
        self._settle(live)
        processed.errors.append((live.key, error))
        processed.stats.append(live.stats(self._engine))


def _delta_of(live: LiveRequest, child: _Child, update: RequestUpdate) -> CompletionDelta:
    """Return the new output of one completion. Mutates: child"""
    detokenizer = child.detokenizer
    pieces: list[str] = []
    num_taken = 0
    hidden = -1 if update.finish_reason is None else _hidden_position(live, update)
    for token_id in update.token_ids:
        pieces.append(detokenizer.push(token_id, is_shown=num_taken != hidden))
        num_taken += 1
        if detokenizer.matched is not None:
            break
    if update.finish_reason is not None and detokenizer.matched is None:
        rest = detokenizer.flush(is_cut=update.finish_reason != "stop")
        pieces[-1:] = [pieces[-1] + rest] if pieces else [rest]
    is_matched = detokenizer.matched is not None
    child.finish_reason = "stop" if is_matched else update.finish_reason
    return CompletionDelta(
        index=child.index,
        text="".join(pieces),
        token_ids=update.token_ids[:num_taken],
        num_chars=tuple(map(len, pieces[:num_taken])),
        logprobs=_logprobs_of(live, update, num_taken),
        finish_reason=child.finish_reason,
        stop_reason=detokenizer.matched if is_matched else update.stop_reason,
    )


def _hidden_position(live: LiveRequest, update: RequestUpdate) -> int:
    """Return the position of a stop token that is not shown; -1 if there is none."""
    if update.finish_reason != "stop" or live.params.include_stop_str_in_output:
        return -1
    return len(update.token_ids) - 1


def _logprobs_of(
    live: LiveRequest, update: RequestUpdate, num_taken: int
) -> tuple[TokenLogprobs, ...] | None:
    if live.params.logprobs is None:
        return None
    return shaped(update.logprobs[:num_taken])


def _output_of(live: LiveRequest, pooled: Pooled | None) -> RequestOutput:
    """Return the output that the caller has not received yet. Mutates: live"""
    deltas, live.deltas = live.deltas, []
    if live.is_whole:
        deltas = joined(deltas)
    prompt_logprobs, live.prompt_logprobs = live.prompt_logprobs, None
    return RequestOutput(
        request_id=live.request_id,
        prompt_token_ids=live.prompt_ids,
        deltas=tuple(deltas),
        is_finished=live.is_finished,
        prompt_logprobs=prompt_logprobs,
        num_cached_tokens=live.num_cached_tokens,
        metrics=live.clock.metrics(),
        pooled=pooled,
        transfer=live.transfer,
    )


def _error_of(update: RequestUpdate, request_id: str) -> DovetailError:
    """Return the caller's exception for an engine's error."""
    what = update.error or "the engine gave no reason."
    if update.error_code == EngineAsleep.kind:
        return EngineAsleep(what, where=request_id, code=update.error_code)
    if update.error_status < 500:
        return RequestError(
            what, where=request_id, code=update.error_code, status=update.error_status
        )
    return RequestFault(what, where=request_id)

"""Request: the engine's state of one generation or pooled prompt, from arrival to finish.

Decides when sampled tokens end the request. Knows no text (stop strings are found by the API
process and arrive here as an abort), no blocks, and only the row number from the scheduler.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dovetail.interfaces.data.media import PromptPart
from dovetail.interfaces.data.pooling_params import PoolingParams
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.data.step import NO_SLOT, Pooled, RowResult, TokenLogprobs
from dovetail.interfaces.stop_condition import StopCondition, Watch
from dovetail.registry.blame import described

if TYPE_CHECKING:
    from dovetail.engine.parts.encodings import Encodings

NO_ROW = -1
WAITING = "waiting"
RUNNING = "running"
FINISHED = "finished"


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """A request's new output since the last call. `logprobs` pairs up with `token_ids`.

    `prompt_logprobs` is None until every prompt position is known, then comes exactly once.
    `pooled` comes at the end of a pooling request.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]
    prompt_logprobs: tuple[TokenLogprobs, ...] | None
    pooled: Pooled | None = None


class Request:
    """Implements interfaces.scheduler.RequestState.

    `finish_reason` is None while the request runs, then "stop", "length", "abort", "error" or
    that of a stop condition. `conditions` are those it uses, with what follows its tokens.
    `stop_reason` is the stop token id that ended it (None for the model's own end token), `error`
    the text of a fault. A request never holds more than `max_tokens` tokens, prompt included.
    `adapter` is the key of its adapter, which stays in `adapter_slot` for the request's lifetime.
    For a prompt-tuning adapter, `num_virtual_tokens` tokens precede the prompt here; users never
    see them. `parts` are the media of the prompt. An encoder-decoder's encoder input has no
    position in the prompt and is part of `prefix_keys`. `encodings` tells which parts are encoded.
    """

    __slots__ = (
        "_end_ids", "_last_ids", "_new_logprobs", "_new_token_ids", "_num_repeated_prompt_logprobs",
        "_num_restarts", "_pooled", "_prompt_logprobs", "_sends_prompt_logprobs", "_stop_ids",
        "adapter", "adapter_slot", "arrival_s", "block_hashes", "cache_salt", "conditions",
        "draft_ids", "encodings", "error", "error_status", "finish_reason", "has_unlikely_drafts",
        "max_tokens", "needs_whole_prompt", "num_accepted_tokens", "num_cached_tokens",
        "num_computed_tokens", "num_draft_tokens", "num_inflight", "num_preemptions",
        "num_prompt_tokens", "num_virtual_tokens", "num_wanted_drafts", "owner", "parts", "pooling",
        "priority", "request_id", "row", "sampling", "seed", "status", "stop_reason", "token_ids",
    )  # fmt: skip

    def __init__(
        self,
        *,
        request_id: str,
        prompt_ids: Sequence[int],
        sampling: SamplingParams,
        seed: int,
        max_model_tokens: int,
        priority: int = 0,
        arrival_s: float = 0.0,
        cache_salt: str = "",
        adapter: str = "",
        pooling: PoolingParams | None = None,
        needs_whole_prompt: bool = False,
        parts: Sequence[PromptPart] = (),
        owner: tuple[str, float] = ("", 1.0),
    ) -> None:
        self.owner = owner
        self.request_id = request_id
        self.sampling = sampling
        self.pooling = pooling
        self.needs_whole_prompt = (
            needs_whole_prompt
            or sampling.prompt_logprobs is not None
            or sampling.alignment is not None
        )
        self.seed = seed
        self.priority = priority
        self.arrival_s = arrival_s
        self.cache_salt = cache_salt
        self.adapter = adapter
        self.adapter_slot = NO_SLOT
        self.num_virtual_tokens = 0
        self.token_ids = list(prompt_ids)
        self.num_prompt_tokens = len(self.token_ids)
        self.parts = tuple(parts)
        self.encodings: Encodings | None = None
        self.conditions: Sequence[tuple[StopCondition, Watch]] = ()
        self.max_tokens = _max_tokens(sampling, self.num_prompt_tokens, max_model_tokens)
        self._pooled: Pooled | None = None
        self._end_ids = frozenset(() if sampling.ignore_eos else sampling.eos_token_ids)
        self._stop_ids = frozenset(sampling.stop_token_ids)
        self._last_ids = self._end_ids | self._stop_ids
        self._start_counters()

    def use_adapter(self, key: str, num_virtual_tokens: int, max_model_tokens: int) -> None:
        """Set the adapter and put its vectors before the prompt, before the request is queued.
        Mutates: self"""
        self.adapter, self.num_virtual_tokens = key, num_virtual_tokens
        if not num_virtual_tokens:
            return
        # Virtual positions repeat a token of the prompt, so that code that counts prompt tokens
        # finds no foreign ones.
        self.token_ids[:0] = self.token_ids[:1] * num_virtual_tokens
        self.num_prompt_tokens = len(self.token_ids)
        self.parts = tuple(
            PromptPart(place=part.place.moved(num_virtual_tokens), features=part.features)
            for part in self.parts
        )
        self.max_tokens = _max_tokens(self.sampling, self.num_prompt_tokens, max_model_tokens)

    def share_nothing(self) -> None:
        """Make its blocks unfindable for other requests from now on. Mutates: self"""
        self.cache_salt = f"{self.cache_salt}\0{self.request_id}"
        self.block_hashes.clear()

    def _start_counters(self) -> None:
        self.status = WAITING
        self.row = NO_ROW
        self.num_computed_tokens = 0
        self.num_inflight = 0
        self.num_cached_tokens = 0
        self.num_preemptions = 0
        self.draft_ids: tuple[int, ...] = ()
        self.has_unlikely_drafts = False
        self.num_wanted_drafts = 0
        self.num_draft_tokens = 0
        self.num_accepted_tokens = 0
        self.block_hashes: list[bytes] = []
        self.finish_reason: str | None = None
        self.stop_reason: int | str | None = None
        self.error: str | None = None
        self.error_status = 500
        self._new_token_ids: list[int] = []
        self._new_logprobs: list[TokenLogprobs] = []
        self._prompt_logprobs: list[TokenLogprobs] = []
        self._sends_prompt_logprobs = self.sampling.prompt_logprobs is not None
        self._num_restarts = 0
        self._num_repeated_prompt_logprobs = 0

    @property
    def num_tokens(self) -> int:
        """Return the number of tokens known so far, prompt and sampled."""
        return len(self.token_ids)

    @property
    def num_real_prompt_tokens(self) -> int:
        """Return the number of prompt tokens that were sent."""
        return self.num_prompt_tokens - self.num_virtual_tokens

    @property
    def num_output_tokens(self) -> int:
        """Return the number of tokens sampled so far."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def output_ids(self) -> list[int]:
        """Return a copy of the tokens sampled so far."""
        return self.token_ids[self.num_prompt_tokens :]

    @property
    def is_finished(self) -> bool:
        """Return whether the request has finished."""
        return self.finish_reason is not None

    @property
    def prefix_keys(self) -> tuple[tuple[str, str], ...]:
        """Return the (type, value) pairs that its cached blocks depend on in addition to tokens."""
        pairs = [("adapter", self.adapter), ("salt", self.cache_salt)]
        pairs += [("encoded", part.place.key) for part in self.parts if not part.place.runs]
        return tuple(pair for pair in pairs if pair[1])

    def parts_between(self, start: int, end: int) -> tuple[tuple[str, str], ...]:
        """Return (key, offset from `start`) of the media that overlap these positions. Their cached
        blocks depend on these."""
        return tuple(
            (part.place.key, str(part.place.start - start))
            for part in self.parts
            if part.place.start < end and part.place.end > start
        )

    def reach(self, start: int, num_tokens: int) -> int:
        """Return how many of the tokens from `start` this step can compute. Less than `num_tokens`
        if a medium in the prompt must wait for its encoding."""
        if self.encodings is None or not self.parts:
            return num_tokens
        return self.encodings.reach(self, start, num_tokens)

    def append(self, result: RowResult) -> None:
        """Record sampled tokens up to the one that ends the request; the rest are dropped.

        Mutates: token_ids, draft_ids, has_unlikely_drafts, and at the end status, finish_reason,
        stop_reason, error
        """
        if self.finish_reason is not None:
            return
        if result.fault is not None:
            self.finish("error", result.fault)
            self.error_status = result.fault_status
            return
        if result.pooled is not None:
            self._pooled = result.pooled
            self.finish("stop")
            return
        if result.prompt_logprobs:
            self._add_prompt_logprobs(result.prompt_logprobs)
        self.draft_ids, self.has_unlikely_drafts = result.drafts, result.has_unlikely_drafts
        num_taken = self._take(result.token_ids)
        if result.logprobs:
            self._new_logprobs.extend(result.logprobs[:num_taken])

    def _take(self, token_ids: Sequence[int]) -> int:
        """Add sampled tokens up to the one that ends the request; return how many. Mutates: self"""
        end = len(self.token_ids) + len(token_ids)
        is_free = not self.conditions and self._last_ids.isdisjoint(token_ids)
        if is_free and end < self.max_tokens:
            self.token_ids += token_ids
            self._new_token_ids += token_ids
            return len(token_ids)
        for num_taken, token_id in enumerate(token_ids, 1):
            self.token_ids.append(token_id)
            self._new_token_ids.append(token_id)
            if self._ends_at(token_id):
                return num_taken
        return len(token_ids)

    def _ends_at(self, token_id: int) -> bool:
        """Return whether the token just appended ends the request; if so, set the reason."""
        num_tokens = len(self.token_ids)
        met = self._met_by(token_id) if self.conditions else None
        if num_tokens - self.num_prompt_tokens >= self.sampling.min_tokens:
            if token_id in self._end_ids:
                self.finish("stop")
            elif token_id in self._stop_ids:
                self.finish("stop")
                self.stop_reason = token_id
            elif met is not None and num_tokens < self.max_tokens:
                self.finish(met.finish_reason, met.stop_reason)
        if num_tokens >= self.max_tokens:
            self.finish("length")
        return self.finish_reason is not None

    def _met_by(self, token_id: int) -> StopCondition | None:
        """Return the first condition that the token just appended meets. All of them see it."""
        try:
            met = [one for one, watch in self.conditions if watch(token_id)]
        except Exception as error:  # a plugin's fault ends its request alone
            self.finish("error", f"a stop condition raised: {described(error)}")
            return None
        return met[0] if met else None

    def _add_prompt_logprobs(self, entries: tuple[TokenLogprobs, ...]) -> None:
        """Add new entries, without those repeated after a preemption (the prompt is recomputed)."""
        if self._num_restarts != self.num_preemptions:
            self._num_restarts = self.num_preemptions
            self._num_repeated_prompt_logprobs = len(self._prompt_logprobs)
        num_repeated = min(self._num_repeated_prompt_logprobs, len(entries))
        self._num_repeated_prompt_logprobs -= num_repeated
        self._prompt_logprobs.extend(entries[num_repeated:])

    def finish(self, reason: str, detail: str | None = None) -> None:
        """End the request: "stop", "length", "abort" or "error". The first reason wins.

        `detail` is the fault's text for "error", else the stop reason.
        """
        if self.finish_reason is not None:
            return
        self.status = FINISHED
        self.finish_reason = reason
        if reason == "error":
            self.error = detail or "the engine gave no reason."
        else:
            self.stop_reason = detail

    def take_progress(self) -> Progress:
        """Return the output since the last call. Mutates: self"""
        progress = Progress(
            token_ids=tuple(self._new_token_ids),
            logprobs=tuple(self._new_logprobs),
            prompt_logprobs=self._take_prompt_logprobs(),
            pooled=self._pooled,
        )
        self._new_token_ids.clear()
        self._new_logprobs.clear()
        return progress

    def _take_prompt_logprobs(self) -> tuple[TokenLogprobs, ...] | None:
        """Return all prompt logprobs once, when the first token has been sampled."""
        if not self._sends_prompt_logprobs or not self._new_token_ids:
            return None
        self._sends_prompt_logprobs = False
        return tuple(self._prompt_logprobs[self.num_virtual_tokens :])


def _max_tokens(sampling: SamplingParams, num_prompt_tokens: int, max_model_tokens: int) -> int:
    """Return the total length at which the request ends, prompt included."""
    if sampling.max_tokens is None:
        return max_model_tokens
    return min(max_model_tokens, num_prompt_tokens + sampling.max_tokens)

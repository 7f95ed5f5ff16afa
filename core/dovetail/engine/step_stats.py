"""StepCounter: collects the counts between two StepStats. Reads the totals of the KV cache, and has
the engine's parts report theirs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dovetail.engine.active_request import ActiveRequest
from dovetail.engine.messages import RequestUpdate
from dovetail.engine.parts.part import EnginePart
from dovetail.interfaces.data.step import StepResult
from dovetail.interfaces.kv_policy import KVAccounting
from dovetail.interfaces.stats import StepStats

_NO_RESULT = StepResult(step_id=0, rows=())


class StepCounter:
    """Counts since the last `take`, which returns and resets them. The engine core adds to them."""

    __slots__ = (
        "_cache", "_engine", "_hit_tokens", "_queried_tokens", "_swapped_in_tokens", "_swaps",
        "accepted_at", "accepted_tokens", "draft_tokens", "drafted_at", "drafts", "faults",
        "finished", "generated_tokens", "preemptions", "prompt_tokens",
    )  # fmt: skip

    def __init__(self, cache: KVAccounting, *, engine: int = 0) -> None:
        self._cache = cache
        self._engine = engine
        self._queried_tokens = 0
        self._hit_tokens = 0
        self._swaps = 0
        self._swapped_in_tokens = 0
        self._start()

    def _start(self) -> None:
        self.prompt_tokens = 0
        self.generated_tokens = 0
        self.preemptions = 0
        self.finished = 0
        self.faults = 0
        self.drafts = 0
        self.draft_tokens = 0
        self.accepted_tokens = 0
        self.drafted_at: list[int] = []
        self.accepted_at: list[int] = []

    def count_update(self, active: ActiveRequest, update: RequestUpdate) -> None:
        """Count a request's new output, and its prompt with the first. Mutates: self, has_token"""
        self.generated_tokens += len(update.token_ids)
        if (update.token_ids or update.pooled is not None) and not active.has_token:
            active.has_token = True
            self.prompt_tokens += active.request.num_real_prompt_tokens
        if update.finish_reason is not None:
            self.finished += 1
            self.faults += update.finish_reason == "error"

    def count_draft(self, num_drafted: int, num_accepted: int) -> None:
        """Count a verified draft, with its first `num_accepted` tokens accepted. Mutates: self"""
        self.drafts += 1
        self.draft_tokens += num_drafted
        self.accepted_tokens += num_accepted
        missing = num_drafted - len(self.drafted_at)
        if missing > 0:
            self.drafted_at += [0] * missing
            self.accepted_at += [0] * missing
        for place in range(num_drafted):
            self.drafted_at[place] += 1
            self.accepted_at[place] += place < num_accepted

    def take(
        self,
        counts: tuple[int, int],
        parts: Iterable[EnginePart] = (),
        *,
        step_tokens: int = 0,
        result: StepResult = _NO_RESULT,
        step_s: float = 0.0,
        wait_s: float = 0.0,
        is_busy: bool = False,
    ) -> StepStats:
        """Return the counts since the last call, with the parts' reports. `wait_s` is the part of
        `step_s` spent waiting for the device; `is_busy`: the engine had work right before this
        step.

        Mutates: resets all counts to 0
        """
        exposed_s = result.idle_s if is_busy else 0.0
        cache = self._cache
        queried, hit = cache.num_queried_tokens, cache.num_hit_tokens
        reported: dict[str, Any] = {}
        for part in parts:
            part.report(reported)
        stats = StepStats(
            num_running=counts[0],
            num_waiting=counts[1],
            kv_usage=1.0 - cache.num_free_blocks / max(1, cache.num_blocks),
            num_swapped=cache.host.num_requests,
            host_kv_usage=cache.host.usage,
            step_tokens=step_tokens,
            prompt_tokens=self.prompt_tokens,
            generated_tokens=self.generated_tokens,
            preemptions=self.preemptions,
            swaps=cache.num_swaps - self._swaps,
            swapped_in_tokens=cache.num_swapped_in_tokens - self._swapped_in_tokens,
            prefix_queried_tokens=queried - self._queried_tokens,
            prefix_hit_tokens=hit - self._hit_tokens,
            finished=self.finished,
            faults=self.faults,
            drafts=self.drafts,
            draft_tokens=self.draft_tokens,
            accepted_tokens=self.accepted_tokens,
            drafted_at=tuple(self.drafted_at),
            accepted_at=tuple(self.accepted_at),
            forward_s=result.forward_s,
            step_s=step_s,
            device_s=result.forward_s + result.sample_s,
            exposed_s=exposed_s,
            hidden_s=max(0.0, step_s - wait_s - exposed_s),
            divided_steps=int(result.is_divided),
            engine=self._engine,
            **reported,
        )
        self._queried_tokens, self._hit_tokens = queried, hit
        self._swaps, self._swapped_in_tokens = cache.num_swaps, cache.num_swapped_in_tokens
        self._start()
        return stats

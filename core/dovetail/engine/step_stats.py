"""StepCounter: counts between two StepStats. Knows the KV cache's totals, nothing of requests."""

from __future__ import annotations

from dovetail.engine.kv_cache import KVCacheManager
from dovetail.interfaces.stats import StepStats
from dovetail.interfaces.step import StepResult

_NO_RESULT = StepResult(step_id=0, rows=())


class StepCounter:
    """The engine core adds to the public counts; `take` returns them and starts again."""

    __slots__ = (
        "_cache",
        "_hit_tokens",
        "_queried_tokens",
        "accepted_tokens",
        "draft_tokens",
        "drafts",
        "faults",
        "finished",
        "generated_tokens",
        "preemptions",
        "prompt_tokens",
    )

    def __init__(self, cache: KVCacheManager) -> None:
        self._cache = cache
        self._queried_tokens = 0
        self._hit_tokens = 0
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

    def take(
        self,
        counts: tuple[int, int],
        *,
        step_tokens: int = 0,
        result: StepResult = _NO_RESULT,
        step_s: float = 0.0,
    ) -> StepStats:
        """Return the counts since the last call. Mutates: all counts go back to 0"""
        cache = self._cache
        queried, hit = cache.num_queried_tokens, cache.num_hit_tokens
        stats = StepStats(
            num_running=counts[0],
            num_waiting=counts[1],
            kv_usage=1.0 - cache.num_free_blocks / max(1, cache.num_blocks),
            step_tokens=step_tokens,
            prompt_tokens=self.prompt_tokens,
            generated_tokens=self.generated_tokens,
            preemptions=self.preemptions,
            prefix_queried_tokens=queried - self._queried_tokens,
            prefix_hit_tokens=hit - self._hit_tokens,
            finished=self.finished,
            faults=self.faults,
            drafts=self.drafts,
            draft_tokens=self.draft_tokens,
            accepted_tokens=self.accepted_tokens,
            forward_s=result.forward_s,
            step_s=step_s,
        )
        self._queried_tokens, self._hit_tokens = queried, hit
        self._start()
        return stats

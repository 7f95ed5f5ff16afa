"""Engine numbers as one log line every few seconds while there is work."""

from __future__ import annotations

import logging
import time
from collections import Counter
from dataclasses import dataclass, field
from math import inf
from typing import Any

from dovetail.interfaces.plugin import Info
from dovetail.interfaces.stats import RequestStats, StatLogger, StepStats
from dovetail_plugins.stat_loggers._prefix_breaks import CHANGED, PrefixBreak, PrefixBreaks

logger = logging.getLogger("dovetail.stats")


@dataclass(frozen=True, kw_only=True)
class _Options:
    interval_s: float = field(
        default=10.0, metadata={"help": "seconds between two lines", "ge": 0.1}
    )


class LogStats(StatLogger):
    """Rates are means over the time since the previous line, counts include all engines; idle
    engines log nothing."""

    info = Info(summary="one log line with throughput and queue length every few seconds")
    Options = _Options

    def __init__(self, options: Any, model_name: str, max_model_tokens: int) -> None:
        self._interval_s: float = options.interval_s
        self._since_s = time.monotonic()
        self._prompt_tokens = 0
        self._generated_tokens = 0
        self._queried_tokens = 0
        self._hit_tokens = 0
        self._preemptions = self._divided_steps = 0
        self._draft_tokens = 0
        self._accepted_tokens = 0
        self._drafted_at: Counter[int] = Counter()
        self._accepted_at: Counter[int] = Counter()
        self._num_finished = 0
        self._last: dict[int, StepStats] = {}
        self._has_news = False
        self._breaks = PrefixBreaks()
        self._num_breaks, self._logged_break_s = 0, -inf

    def step(self, stats: StepStats) -> None:
        """Count; write a line when the interval is over."""
        self._last[stats.engine] = stats
        self._has_news = True
        self._prompt_tokens += stats.prompt_tokens
        self._generated_tokens += stats.generated_tokens
        self._queried_tokens += stats.prefix_queried_tokens
        self._hit_tokens += stats.prefix_hit_tokens
        self._preemptions += stats.preemptions
        self._divided_steps += stats.divided_steps
        self._num_finished += stats.finished
        self._draft_tokens += stats.draft_tokens
        self._accepted_tokens += stats.accepted_tokens
        if stats.drafts:
            self._drafted_at.update(dict(enumerate(stats.drafted_at)))
            self._accepted_at.update(dict(enumerate(stats.accepted_at)))
        self.flush()

    def request(self, stats: RequestStats) -> None:
        """Write a line, if none was written lately, for a prompt that lost its prefix. All else is
        counted by step: with several API processes, steps are reported to one of them."""
        found = self._breaks.note(stats)
        if found is None:
            return
        self._num_breaks += 1
        now_s = time.monotonic()
        if now_s - self._logged_break_s >= self._interval_s:
            logger.info("%s", _break_line(found, stats, self._num_breaks - 1))
            self._logged_break_s, self._num_breaks = now_s, 0

    def flush(self) -> None:
        """Write a line if the interval is over and there is something to say."""
        now_s = time.monotonic()
        seconds = now_s - self._since_s
        if seconds < self._interval_s or not self._has_news:
            return
        logger.info("%s", self._line(seconds))
        self._since_s, self._has_news = now_s, False
        self._prompt_tokens = self._generated_tokens = self._num_finished = 0
        self._queried_tokens = self._hit_tokens = self._preemptions = self._divided_steps = 0
        self._draft_tokens = self._accepted_tokens = 0
        self._drafted_at.clear()
        self._accepted_at.clear()

    def _by_position(self) -> str:
        shares = (self._accepted_at[i] / n for i, n in sorted(self._drafted_at.items()))
        return " ".join(f"{share:.0%}" for share in shares)

    def _line(self, seconds: float) -> str:
        last = self._last.values()
        hit_share = self._hit_tokens / self._queried_tokens if self._queried_tokens else 0.0
        drafts = ""
        if self._draft_tokens:
            share = self._accepted_tokens / self._draft_tokens
            drafts = f", drafts kept {self._accepted_tokens} of {self._draft_tokens} ({share:.0%}"
            drafts += f"; by position {self._by_position()})" if self._drafted_at else ")"
        halves = ""
        if self._divided_steps:
            halves = f", steps in two half batches {self._divided_steps}"
        return (
            f"prompt {self._prompt_tokens / seconds:.1f} tokens/s, "
            f"generated {self._generated_tokens / seconds:.1f} tokens/s, "
            f"running {sum(one.num_running for one in last)}, "
            f"waiting {sum(one.num_waiting for one in last)}, "
            f"finished {self._num_finished}, "
            f"KV cache {sum(one.kv_usage for one in last) / len(last):.1%}, "
            f"prefix hits {hit_share:.1%}, preemptions {self._preemptions}{drafts}{halves}"
        )


def _break_line(found: PrefixBreak, stats: RequestStats, num_others: int) -> str:
    """Return the line about a prompt that was computed again from one of its tokens on."""
    reason = "the cache no longer had them"
    if found.why == CHANGED:
        reason = f"token {found.at} was {found.was} and is {found.now}"
    others = f"; {num_others} more since the last such line" if num_others else ""
    return (
        f"prefix broke at token {found.at} of {stats.prompt_tokens} in request "
        f"{stats.request_id}: {found.num_lost} tokens of its conversation were computed again, "
        f"since {reason}{others}"
    )

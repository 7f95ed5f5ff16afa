"""What a driver is and what one run of it leaves behind. Standard library only.

A driver makes exactly `num_new` tokens for every prompt, greedily, past any end token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a driver is built from. `options` are the engine's own, from the catalog."""

    model: Path
    checkpoint: Path
    num_threads: int
    options: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """One run. Units: seconds of time.perf_counter.

    `ends_s` are the ends of decode steps in which every sequence was running; fewer than
    `num_new` where sequences start at different steps.
    """

    start_s: float
    end_s: float
    ends_s: list[float]
    num_tokens: list[int]


class Driver(Protocol):
    """One engine in this process."""

    def prepare(self, sequences: int, tokens_each: int) -> None:
        """Set up for so many sequences of so many tokens, outside the timed run."""
        ...

    def run(self, prompts: Sequence[list[int]], num_new: int) -> Trace:
        """Generate and time, in a shape that was prepared."""
        ...

    def facts(self) -> dict[str, str]:
        """Return versions and the instruction sets in use, where the engine tells them."""
        ...


def common_steps(arrivals: Sequence[Sequence[float]], num_new: int) -> list[float]:
    """Return when the first sequence's tokens came while all sequences had begun and none ended.

    `arrivals` holds one list of token times per sequence.
    """
    if any(not times for times in arrivals):
        return []
    start_s = max(times[0] for times in arrivals)
    end_s = min(times[:num_new][-1] for times in arrivals)
    return [time_s for time_s in arrivals[0][:num_new] if start_s <= time_s <= end_s]

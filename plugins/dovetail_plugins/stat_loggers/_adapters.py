"""Which adapters are in use, as the labels of one Prometheus series, like vLLM's gauge.

The value is the time at which the labels became true, so that the newest series is the right one
wherever older ones are still shown (API processes that share their metrics cannot take one back).
"""

from __future__ import annotations

import os
import time

from dovetail.interfaces.stats import StepStats
from dovetail.observability.metrics import FOLDER_VARIABLE, PREFIX, gauge
from dovetail_plugins.stat_loggers._families import LORA, LORA_LABELS


class AdapterGauge:
    """The names of all engines' adapters, of running and of waiting requests."""

    def __init__(self) -> None:
        self._gauge = gauge(
            f"{PREFIX}{LORA}",
            "Adapters that requests use and wait for, by comma in the labels; since when, in "
            "seconds of Unix time, or 0 where no adapters are served",
            LORA_LABELS,
            has_alias=True,
        )
        self._engines: dict[int, StepStats] = {}
        self._shown = ("0", "", "")
        self._gauge.labels(*self._shown).set(0)

    def step(self, stats: StepStats) -> None:
        """Record what an engine's requests use, if it serves adapters."""
        if not stats.max_adapters:
            return
        self._engines[stats.engine] = stats
        each = self._engines.values()
        waiting = sorted({name for one in each for name in one.waiting_adapters})
        running = sorted({name for one in each for name in one.running_adapters})
        labels = (str(stats.max_adapters), ",".join(waiting), ",".join(running))
        if labels == self._shown:
            return
        if FOLDER_VARIABLE not in os.environ:
            self._gauge.remove(*self._shown)
        self._shown = labels
        self._gauge.labels(*labels).set(time.time())

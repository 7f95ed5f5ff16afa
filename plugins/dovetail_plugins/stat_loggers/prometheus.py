"""Engine numbers as Prometheus metrics, shown by /metrics.

It counts what clients can count: requests by reason, tokens as usage reports them. `_families`
describes each family.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from dovetail.interfaces.plugin import Info
from dovetail.interfaces.stats import RequestStats, StatLogger, StepStats, TokenStats, TransferStats
from dovetail.observability.metrics import PREFIX, counter, gauge, histogram
from dovetail_plugins.stat_loggers._adapters import AdapterGauge
from dovetail_plugins.stat_loggers._families import (
    BY_CAUSE,
    BY_CONNECTOR,
    BY_POSITION,
    COUNTERS,
    GAUGES,
    HIDDEN,
    OWN,
    SUCCESS,
    SUCCESS_REASONS,
    histograms,
)
from dovetail_plugins.stat_loggers._prefix_breaks import CHANGED, GONE, PrefixBreak, PrefixBreaks

_LABELS = ("model_name", "engine")
POSITION = "position"
CONNECTOR = "connector"
CAUSE = "cause"


@dataclass(frozen=True, kw_only=True)
class _Options:
    shows_hidden: bool = field(
        default=False,
        metadata={"help": "show deprecated metrics; --show-hidden-metrics-for-version sets it"},
    )


class PrometheusStats(StatLogger):
    """All metrics except `lora_requests_info` have the labels model_name and engine, the engine's
    number if several serve one model."""

    info = Info(
        summary="Prometheus metrics under dovetail's and vLLM's names, served at /metrics",
        source="https://docs.vllm.ai/en/latest/design/metrics",
    )
    Options = _Options

    def __init__(self, options: Any, model_name: str, max_model_tokens: int) -> None:
        self._name = model_name
        self._families = _Families(max_model_tokens, shows_hidden=options.shows_hidden)
        self._engines: dict[int, _EngineMetrics] = {}
        self._adapters = AdapterGauge()
        self._breaks = PrefixBreaks()

    def expect(self, engines: Sequence[int]) -> None:
        """Show the zeros of these engines: a rate needs the zero that came before."""
        for number in engines:
            self._of(number)

    def _of(self, number: int) -> _EngineMetrics:
        found = self._engines.get(number)
        if found is None:
            found = self._engines[number] = _EngineMetrics(self._families, self._name, number)
        return found

    def step(self, stats: StepStats) -> None:
        """Record an engine's state after a step."""
        self._of(stats.engine).step(stats)
        self._adapters.step(stats)

    def tokens(self, stats: TokenStats) -> None:
        """Record tokens as they reach their requests."""
        self._of(stats.engine).tokens(stats)

    def request(self, stats: RequestStats) -> None:
        """Record a finished request; one that failed counts as no success."""
        self._of(stats.engine).request(stats)
        found = self._breaks.note(stats)
        if found is not None:
            self._of(stats.engine).prefix_break(found)


class _Families:
    """The families that are shown, without labels."""

    def __init__(self, max_model_tokens: int, *, shows_hidden: bool) -> None:
        facts = histograms(max_model_tokens)

        def each(names: Any, make: Callable[[str], Any]) -> dict[str, Any]:
            return {name: make(name) for name in names if shows_hidden or name not in HIDDEN}

        self.gauges = each(
            GAUGES, lambda name: gauge(_full(name), GAUGES[name], _LABELS, has_alias=_shared(name))
        )
        self.counters = each(
            COUNTERS,
            lambda name: counter(_full(name), COUNTERS[name], _LABELS, has_alias=_shared(name)),
        )
        self.by_position = {
            name: counter(_full(name), text, (*_LABELS, POSITION), has_alias=_shared(name))
            for name, text in BY_POSITION.items()
        }
        self.by_connector = {
            name: counter(_full(name), text, (*_LABELS, CONNECTOR))
            for name, text in BY_CONNECTOR.items()
        }
        self.by_cause = {
            name: counter(_full(name), text, (*_LABELS, CAUSE)) for name, text in BY_CAUSE.items()
        }
        self.histograms = each(
            facts,
            lambda name: histogram(_full(name), *facts[name], _LABELS, has_alias=_shared(name)),
        )
        self.success = counter(
            _full(SUCCESS),
            "Requests finished without failure; abort: the client left",
            (*_LABELS, "finished_reason"),
            has_alias=True,
        )


class _EngineMetrics:
    """One engine's numbers."""

    def __init__(self, families: _Families, model_name: str, engine: int) -> None:
        labels = (model_name, str(engine))
        self._labels = labels
        self._gauges = {name: one.labels(*labels) for name, one in families.gauges.items()}
        self._counters = {name: one.labels(*labels) for name, one in families.counters.items()}
        self._histograms = {name: one.labels(*labels) for name, one in families.histograms.items()}
        self._by_position = families.by_position
        self._by_connector = families.by_connector
        self._by_cause = families.by_cause
        for cause, family in itertools.product((CHANGED, GONE), self._by_cause.values()):
            family.labels(*labels, cause)
        self._success = families.success
        for reason in SUCCESS_REASONS:
            self._success.labels(*labels, reason)
        self._num_queried = 0
        self._num_hit = 0
        self._num_drafts = 0
        self._num_draft_tokens = 0
        self._num_accepted = 0

    def step(self, stats: StepStats) -> None:
        """Record the engine's state after a step."""
        self._set_gauges(stats)
        counts = {
            "num_preemptions": stats.preemptions,
            "num_swaps": stats.swaps,
            "swapped_in_tokens": stats.swapped_in_tokens,
            "device_seconds": stats.device_s,
            "divided_steps": stats.divided_steps,
            "exposed_host_seconds": stats.exposed_s,
            "hidden_host_seconds": stats.hidden_s,
            "gpu_prefix_cache_queries": stats.prefix_queried_tokens,
            "gpu_prefix_cache_hits": stats.prefix_hit_tokens,
            "prefix_cache_queries": stats.prefix_queried_tokens,
            "prefix_cache_hits": stats.prefix_hit_tokens,
            "spec_decode_num_drafts": stats.drafts,
            "spec_decode_num_draft_tokens": stats.draft_tokens,
            "spec_decode_num_accepted_tokens": stats.accepted_tokens,
            # Every draft also brings the token drawn after what came true of it.
            "spec_decode_num_emitted_tokens": stats.accepted_tokens + stats.drafts,
        }
        for name, count in counts.items():
            self._count(name, count)
        self._count_places("spec_decode_num_draft_tokens_per_pos", stats.drafted_at)
        self._count_places("spec_decode_num_accepted_tokens_per_pos", stats.accepted_at)
        if stats.transfer is not None:
            self._count_transfer(stats.transfer)
        if stats.step_tokens:
            self._observe("iteration_tokens_total", stats.step_tokens)
            self._observe("model_forward_time_milliseconds", stats.forward_s * 1e3)
            self._observe("model_execute_time_milliseconds", stats.step_s * 1e3)

    def _count_transfer(self, stats: TransferStats) -> None:
        """Count the connector's traffic."""
        counts = {
            "kv_transfer_loads": stats.loads,
            "kv_transfer_failures": stats.failures,
            "kv_transfer_loaded_tokens": stats.loaded_tokens,
            "kv_transfer_loaded_bytes": stats.loaded_bytes,
            "kv_transfer_saved_bytes": stats.saved_bytes,
            "kv_transfer_load_seconds": stats.load_s,
        }
        for name, count in counts.items():
            self._by_connector[name].labels(*self._labels, stats.connector).inc(count)

    def tokens(self, stats: TokenStats) -> None:
        """Record tokens as they reach their requests."""
        self._count("prompt_tokens", stats.prompt_tokens)
        self._count("generation_tokens", stats.generated_tokens)

    def request(self, stats: RequestStats) -> None:
        """Record a finished request; one that failed counts as no success."""
        if stats.finish_reason == "error":
            self._count("faults", 1)
        else:
            self._success.labels(*self._labels, stats.finish_reason).inc()
        self._count("cached_prompt_tokens", stats.cached_tokens)
        self._observe("e2e_request_latency_seconds", stats.e2e_s)
        self._observe("request_queue_time_seconds", stats.queue_s)
        self._observe("time_in_queue_requests", stats.queue_s)
        self._observe("request_prompt_tokens", stats.prompt_tokens)
        self._observe("request_generation_tokens", stats.generated_tokens)
        self._observe("request_max_num_generation_tokens", stats.longest_tokens)
        self._observe("request_params_n", stats.n)
        self._observe("request_params_max_tokens", stats.max_tokens)
        if stats.generated_tokens:
            self._observe_answer(stats)

    def prefix_break(self, found: PrefixBreak) -> None:
        """Record a prompt that was computed again although an earlier one had begun like it."""
        self._by_cause["prefix_broken_tokens"].labels(*self._labels, found.why).inc(found.num_lost)
        self._observe("prefix_broken_at_tokens", found.at)

    def _observe_answer(self, stats: RequestStats) -> None:
        self._observe("time_to_first_token_seconds", stats.ttft_s)
        self._observe("request_prefill_time_seconds", stats.prefill_s)
        self._observe("request_decode_time_seconds", stats.decode_s)
        self._observe("request_inference_time_seconds", stats.prefill_s + stats.decode_s)
        for gap_s in stats.inter_token_s:
            self._observe("time_per_output_token_seconds", gap_s)
            self._observe("inter_token_latency_seconds", gap_s)

    def _set_gauges(self, stats: StepStats) -> None:
        self._num_queried += stats.prefix_queried_tokens
        self._num_hit += stats.prefix_hit_tokens
        self._set("num_requests_running", stats.num_running)
        self._set("num_requests_waiting", stats.num_waiting)
        self._set("gpu_cache_usage_perc", stats.kv_usage)
        self._set("kv_cache_usage_perc", stats.kv_usage)
        self._set("num_requests_swapped", stats.num_swapped)
        self._set("cpu_cache_usage_perc", stats.host_kv_usage)
        self._set("sleep_level", stats.sleep_level)
        share = self._num_hit / self._num_queried if self._num_queried else 0.0
        self._set("gpu_prefix_cache_hit_rate", share)
        if stats.drafts:
            self._set_draft_gauges(stats)

    def _set_draft_gauges(self, stats: StepStats) -> None:
        """Set the shares since start: of accepted draft tokens, and of possible tokens."""
        self._num_drafts += stats.drafts
        self._num_draft_tokens += stats.draft_tokens
        self._num_accepted += stats.accepted_tokens
        accepted, drafted = self._num_accepted, self._num_draft_tokens
        self._set("spec_decode_draft_acceptance_rate", accepted / drafted)
        self._set(
            "spec_decode_efficiency", (accepted + self._num_drafts) / (drafted + self._num_drafts)
        )

    def _count_places(self, name: str, counts: Sequence[int]) -> None:
        for place, count in enumerate(counts):
            self._by_position[name].labels(*self._labels, str(place)).inc(count)

    def _count(self, name: str, count: float) -> None:
        if count:
            self._counters[name].inc(count)

    def _set(self, name: str, value: float) -> None:
        if name in self._gauges:
            self._gauges[name].set(value)

    def _observe(self, name: str, value: float) -> None:
        if name in self._histograms:
            self._histograms[name].observe(value)


def _full(name: str) -> str:
    return PREFIX + name


def _shared(name: str) -> bool:
    return name not in OWN

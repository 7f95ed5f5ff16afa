"""Engine numbers as Prometheus metrics, named as `vllm serve` names them, so dashboards work.

Source: the metrics table of the vLLM documentation. Deprecated names that still have a meaning
here are filled; those of features that do not exist here stay at zero. /metrics shows them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dovetail.interfaces.plugin import Info
from dovetail.interfaces.stats import RequestStats, StatLogger, StepStats
from dovetail.observability.metrics import counter, gauge, histogram

_LABELS = ("model_name",)
_STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
_FIRST_TOKEN_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5),
    *(0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_TOKEN_S = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5),
    *(0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
_REQUEST_S = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0),
    *(30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
_CALL_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)
_N = (1, 2, 5, 10, 20)

_GAUGES = {
    "vllm:num_requests_running": "Requests executing now",
    "vllm:num_requests_waiting": "Requests queued now",
    "vllm:num_requests_swapped": "Requests moved out to host memory (never done here)",
    "vllm:gpu_cache_usage_perc": "Share of device KV cache in use, 0 to 1",
    "vllm:kv_cache_usage_perc": "Share of device KV cache in use, 0 to 1",
    "vllm:cpu_cache_usage_perc": "Share of host KV cache in use (there is none here)",
    "vllm:gpu_prefix_cache_hit_rate": "Share of looked-up tokens found in the prefix cache",
    "vllm:cpu_prefix_cache_hit_rate": "Prefix hits in host cache blocks (there is none here)",
    "vllm:spec_decode_draft_acceptance_rate": "Fraction of draft tokens kept",
    "vllm:spec_decode_efficiency": "Tokens that drafts brought, of those they could have brought",
}
_COUNTERS = {
    "vllm:num_preemptions": "Evictions by the scheduler since start",
    "vllm:prompt_tokens": "Prompt tokens handled since start",
    "vllm:generation_tokens": "Output tokens produced since start",
    "vllm:gpu_prefix_cache_queries": "Tokens looked up in the prefix cache",
    "vllm:gpu_prefix_cache_hits": "Looked-up tokens found in the prefix cache",
    "vllm:prefix_cache_queries": "Tokens looked up in the prefix cache",
    "vllm:prefix_cache_hits": "Looked-up tokens found in the prefix cache",
    "vllm:spec_decode_num_drafts": "Drafts verified since start",
    "vllm:spec_decode_num_accepted_tokens": "Draft tokens kept since start",
    "vllm:spec_decode_num_draft_tokens": "Draft tokens proposed since start",
    "vllm:spec_decode_num_emitted_tokens": "Tokens emitted by speculation since start",
    "dovetail:faults": "Requests ended by a fault of their own",
}


class PrometheusStats(StatLogger):
    """All metrics carry the label model_name."""

    info = Info(
        summary="Prometheus metrics under vLLM's names, shown by /metrics",
        source="https://docs.vllm.ai/en/latest/design/metrics",
    )

    def __init__(self, options: Any, model_name: str, max_model_tokens: int) -> None:
        self._name = model_name
        self._gauges = {
            name: gauge(name, text, _LABELS).labels(model_name) for name, text in _GAUGES.items()
        }
        self._counters = {
            name: counter(name, text, _LABELS).labels(model_name)
            for name, text in _COUNTERS.items()
        }
        buckets = _histograms(max_model_tokens)
        self._histograms = {
            name: histogram(name, text, bounds, _LABELS).labels(model_name)
            for name, (text, bounds) in buckets.items()
        }
        self._success = counter(
            "vllm:request_success", "Requests finished without failure",
            (*_LABELS, "finished_reason"),
        )  # fmt: skip
        gauge(
            "vllm:lora_requests_info",
            "Adapter activity, carried in labels",
            ("max_lora", "waiting_lora_adapters", "running_lora_adapters"),
        )
        self._num_queried = 0
        self._num_hit = 0
        self._num_drafts = 0
        self._num_draft_tokens = 0
        self._num_accepted = 0

    def step(self, stats: StepStats) -> None:
        """Record the engine's state after a step."""
        self._set_gauges(stats)
        counts = {
            "vllm:num_preemptions": stats.preemptions,
            "vllm:prompt_tokens": stats.prompt_tokens,
            "vllm:generation_tokens": stats.generated_tokens,
            "vllm:gpu_prefix_cache_queries": stats.prefix_queried_tokens,
            "vllm:gpu_prefix_cache_hits": stats.prefix_hit_tokens,
            "vllm:prefix_cache_queries": stats.prefix_queried_tokens,
            "vllm:prefix_cache_hits": stats.prefix_hit_tokens,
            "vllm:spec_decode_num_drafts": stats.drafts,
            "vllm:spec_decode_num_draft_tokens": stats.draft_tokens,
            "vllm:spec_decode_num_accepted_tokens": stats.accepted_tokens,
            # Every draft also brings the token drawn after what came true of it.
            "vllm:spec_decode_num_emitted_tokens": stats.accepted_tokens + stats.drafts,
            "dovetail:faults": stats.faults,
        }
        for name, count in counts.items():
            if count:
                self._counters[name].inc(count)
        if stats.step_tokens:
            self._observe("vllm:iteration_tokens_total", stats.step_tokens)
            self._observe("vllm:model_forward_time_milliseconds", stats.forward_s * 1e3)
            self._observe("vllm:model_execute_time_milliseconds", stats.step_s * 1e3)

    def request(self, stats: RequestStats) -> None:
        """Record a finished request; one that failed counts as no success."""
        if stats.finish_reason != "error":
            self._success.labels(self._name, stats.finish_reason).inc()
        self._observe("vllm:e2e_request_latency_seconds", stats.e2e_s)
        self._observe("vllm:request_queue_time_seconds", stats.queue_s)
        self._observe("vllm:time_in_queue_requests", stats.queue_s)
        self._observe("vllm:request_prompt_tokens", stats.prompt_tokens)
        self._observe("vllm:request_generation_tokens", stats.generated_tokens)
        self._observe("vllm:request_max_num_generation_tokens", stats.generated_tokens / stats.n)
        self._observe("vllm:request_params_n", stats.n)
        self._observe("vllm:request_params_max_tokens", stats.max_tokens)
        if not stats.generated_tokens:
            return
        self._observe("vllm:time_to_first_token_seconds", stats.ttft_s)
        self._observe("vllm:request_prefill_time_seconds", stats.prefill_s)
        self._observe("vllm:request_decode_time_seconds", stats.decode_s)
        self._observe("vllm:request_inference_time_seconds", stats.prefill_s + stats.decode_s)
        for gap_s in stats.inter_token_s:
            self._observe("vllm:time_per_output_token_seconds", gap_s)
            self._observe("vllm:inter_token_latency_seconds", gap_s)

    def _set_gauges(self, stats: StepStats) -> None:
        self._num_queried += stats.prefix_queried_tokens
        self._num_hit += stats.prefix_hit_tokens
        self._gauges["vllm:num_requests_running"].set(stats.num_running)
        self._gauges["vllm:num_requests_waiting"].set(stats.num_waiting)
        self._gauges["vllm:gpu_cache_usage_perc"].set(stats.kv_usage)
        self._gauges["vllm:kv_cache_usage_perc"].set(stats.kv_usage)
        share = self._num_hit / self._num_queried if self._num_queried else 0.0
        self._gauges["vllm:gpu_prefix_cache_hit_rate"].set(share)
        if stats.drafts:
            self._set_draft_gauges(stats)

    def _set_draft_gauges(self, stats: StepStats) -> None:
        """Set the shares since start: of drafts kept, and of the tokens that could have come."""
        self._num_drafts += stats.drafts
        self._num_draft_tokens += stats.draft_tokens
        self._num_accepted += stats.accepted_tokens
        accepted, most = self._num_accepted, self._num_draft_tokens
        self._gauges["vllm:spec_decode_draft_acceptance_rate"].set(accepted / most)
        efficiency = (accepted + self._num_drafts) / (most + self._num_drafts)
        self._gauges["vllm:spec_decode_efficiency"].set(efficiency)

    def _observe(self, name: str, value: float) -> None:
        self._histograms[name].observe(value)


def _histograms(max_model_tokens: int) -> dict[str, tuple[str, Sequence[float]]]:
    lengths = _length_buckets(max_model_tokens)
    return {
        "vllm:iteration_tokens_total": ("Tokens in each engine step", _STEP_TOKENS),
        "vllm:time_to_first_token_seconds": ("Delay until the first token", _FIRST_TOKEN_S),
        "vllm:time_per_output_token_seconds": ("Delay between output tokens", _TOKEN_S),
        "vllm:inter_token_latency_seconds": ("Delay between output tokens", _TOKEN_S),
        "vllm:e2e_request_latency_seconds": ("Whole duration of a request", _REQUEST_S),
        "vllm:request_queue_time_seconds": ("Seconds a request waited", _REQUEST_S),
        "vllm:time_in_queue_requests": ("Older form of queue seconds", _REQUEST_S),
        "vllm:request_prefill_time_seconds": ("Seconds spent on the prompt", _REQUEST_S),
        "vllm:request_decode_time_seconds": ("Seconds spent generating", _REQUEST_S),
        "vllm:request_inference_time_seconds": ("Seconds a request was running", _REQUEST_S),
        "vllm:request_prompt_tokens": ("Prompt length of each request", lengths),
        "vllm:request_generation_tokens": ("Output length of each request", lengths),
        "vllm:request_max_num_generation_tokens": ("Mean length of its answers", lengths),
        "vllm:request_params_max_tokens": ("Value of max_tokens in requests", lengths),
        "vllm:request_params_n": ("Value of n in requests", _N),
        "vllm:model_forward_time_milliseconds": ("Milliseconds per model forward", _CALL_MS),
        "vllm:model_execute_time_milliseconds": ("Milliseconds per engine step", _CALL_MS),
    }


def _length_buckets(largest: int) -> list[int]:
    """Return 1, 2, 5, 10, 20, 50, ... up to the context length."""
    bounds = (digit * 10**power for power in range(10) for digit in (1, 2, 5))
    return [bound for bound in bounds if bound <= max(largest, 1)]

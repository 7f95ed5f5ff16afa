"""The engine's metric families: names without prefix, help texts, buckets, and which are hidden.

Each is exported as `dovetail:NAME` and, if `vllm serve` has it, as `vllm:NAME` too. A metric of a
missing feature stays at zero and says so.
Source: the metrics table of the vLLM documentation.
"""

from __future__ import annotations

from collections.abc import Sequence

GAUGES = {
    "num_requests_running": "Requests executing now",
    "num_requests_waiting": "Requests queued now",
    "num_requests_swapped": "Waiting requests whose KV cache is in host memory",
    "gpu_cache_usage_perc": "Share of the KV cache in use, 0 to 1",
    "kv_cache_usage_perc": "Share of the KV cache in use, 0 to 1",
    "cpu_cache_usage_perc": "Share of --swap-space in use, 0 to 1",
    "gpu_prefix_cache_hit_rate": "Share of looked-up tokens found in the prefix cache, since start",
    "cpu_prefix_cache_hit_rate": "Always 0: prefixes are not looked up in host memory",
    "spec_decode_draft_acceptance_rate": "Share of draft tokens kept, since start",
    "spec_decode_efficiency": "Emitted tokens per most possible ones of drafts, since start",
    "sleep_level": "Sleep level of the engine; 0 while it is awake",
}
COUNTERS = {
    "num_preemptions": "Preemptions by the scheduler",
    "num_swaps": "Preemptions that swapped the KV cache to host memory",
    "swapped_in_tokens": "Tokens copied back from host memory instead of recomputed",
    "device_seconds": "Seconds that the device spent on steps",
    "divided_steps": "Steps run in two half batches (--enable-dbo)",
    "exposed_host_seconds": "Seconds that the device waited for the host between steps",
    "hidden_host_seconds": "Seconds that the host worked on steps while the device was busy",
    "prompt_tokens": "Prompt tokens of requests with a first token, as usage counts them",
    "generation_tokens": "Output tokens, as usage counts them",
    "cached_prompt_tokens": "Prompt tokens of finished requests found in the prefix cache",
    "gpu_prefix_cache_queries": "Tokens looked up in the prefix cache",
    "gpu_prefix_cache_hits": "Looked-up tokens found in the prefix cache",
    "prefix_cache_queries": "Tokens looked up in the prefix cache",
    "prefix_cache_hits": "Looked-up tokens found in the prefix cache",
    "spec_decode_num_drafts": "Drafts verified",
    "spec_decode_num_accepted_tokens": "Draft tokens kept",
    "spec_decode_num_draft_tokens": "Draft tokens proposed",
    "spec_decode_num_emitted_tokens": "Tokens emitted by steps that verified a draft",
    "faults": "Requests that the engine accepted and that ended with an error",
}
BY_CONNECTOR = {
    "kv_transfer_loads": "Requests whose KV blocks came through the connector",
    "kv_transfer_failures": "Requests whose KV blocks could not be had through the connector",
    "kv_transfer_loaded_tokens": "Tokens whose KV blocks came instead of being computed",
    "kv_transfer_loaded_bytes": "Bytes of KV blocks that came, on each rank",
    "kv_transfer_saved_bytes": "Bytes of KV blocks given to the connector, on each rank",
    "kv_transfer_load_seconds": "Seconds that requests waited for their KV blocks, all together",
}
"""Counters with the label `connector`, its name; shown once there is one."""
BY_CAUSE = {
    "prefix_broken_tokens": "Tokens computed again behind a break of their conversation's prefix",
}
"""Counters with the label `cause`: changed, the prompt's beginning is another one; gone, it was no
longer in the cache."""
BY_POSITION = {
    "spec_decode_num_draft_tokens_per_pos": "Draft tokens proposed, by their place in the draft",
    "spec_decode_num_accepted_tokens_per_pos": "Draft tokens kept, by their place in the draft",
}
"""Counters with the label `position`, 0 for a draft's first token."""

OWN = frozenset(
    {
        *("faults", "cached_prompt_tokens", "num_swaps", "sleep_level", "swapped_in_tokens"),
        "spec_decode_num_draft_tokens_per_pos",
        *BY_CONNECTOR,
        *BY_CAUSE,
        "prefix_broken_at_tokens",
        *("device_seconds", "divided_steps", "exposed_host_seconds", "hidden_host_seconds"),
    }
)
"""Families that only dovetail has."""

HIDDEN = frozenset(
    {
        "cpu_cache_usage_perc",
        "cpu_prefix_cache_hit_rate",
        "gpu_prefix_cache_hit_rate",
        "model_execute_time_milliseconds",
        "model_forward_time_milliseconds",
        "num_requests_swapped",
        "time_in_queue_requests",
    }
)
"""Deprecated families, shown only with --show-hidden-metrics-for-version."""

SUCCESS = "request_success"
SUCCESS_REASONS = ("stop", "length", "abort")
LORA = "lora_requests_info"
LORA_LABELS = ("max_lora", "waiting_lora_adapters", "running_lora_adapters")

_STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512)
_FIRST_TOKEN_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5),
    *(0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_TOKEN_S = (
    *(0.001, 0.0025, 0.005),  # vLLM has none below the next
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5),
    *(0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
_REQUEST_S = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0),
    *(30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
_CALL_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)
_N = (1, 2, 5, 10, 20)


def histograms(max_model_tokens: int) -> dict[str, tuple[str, Sequence[float]]]:
    """Return name -> (help text, buckets). Lengths go up to the context length."""
    lengths = _length_buckets(max_model_tokens)
    return {
        "iteration_tokens_total": ("Tokens in each engine step", _STEP_TOKENS),
        "time_to_first_token_seconds": ("Time from arrival to the first token", _FIRST_TOKEN_S),
        "time_per_output_token_seconds": ("Time between output tokens", _TOKEN_S),
        "inter_token_latency_seconds": ("Time between output tokens", _TOKEN_S),
        "e2e_request_latency_seconds": ("Time from arrival to the end", _REQUEST_S),
        "request_queue_time_seconds": ("Time from arrival to the first step", _REQUEST_S),
        "time_in_queue_requests": ("Older name for request_queue_time_seconds", _REQUEST_S),
        "request_prefill_time_seconds": ("Time from the first step to the first token", _REQUEST_S),
        "request_decode_time_seconds": ("Time from the first token to the last", _REQUEST_S),
        "request_inference_time_seconds": (
            "Time from the first step to the last token",
            _REQUEST_S,
        ),
        "request_prompt_tokens": ("Prompt length of each request", lengths),
        "request_generation_tokens": ("Output tokens of each request", lengths),
        "request_max_num_generation_tokens": (
            "Output tokens of each request's longest completion",
            lengths,
        ),
        "request_params_max_tokens": ("max_tokens of each request", lengths),
        "request_params_n": ("n of each request", _N),
        "prefix_broken_at_tokens": (
            "Token at which a prompt stopped to begin like an earlier one of its conversation",
            lengths,
        ),
        "model_forward_time_milliseconds": (
            "Time of the model's forward pass in each step",
            _CALL_MS,
        ),
        "model_execute_time_milliseconds": ("Time of each engine step", _CALL_MS),
    }


def _length_buckets(largest: int) -> list[int]:
    """Return 1, 2, 5, 10, 20, 50, ... up to the context length."""
    bounds = (digit * 10**power for power in range(10) for digit in (1, 2, 5))
    return [bound for bound in bounds if bound <= max(largest, 1)]

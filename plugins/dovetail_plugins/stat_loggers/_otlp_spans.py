"""A finished request as spans: names, times, attributes, status. Imports no OpenTelemetry.

Source: the semantic conventions of OpenTelemetry for generative AI, https://opentelemetry.io/docs/
specs/semconv/gen-ai/; gen_ai.latency.* are the names that `vllm serve` gives the same times.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from dovetail.interfaces.stats import RequestStats, RequestTimes

Attribute = str | int | float | tuple[str, ...]

OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/messages": "chat",
    "/v1/responses": "chat",
}
"""Path -> name of the operation; any other is a text completion."""

PROVIDER = "dovetail"


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """One part of a request's life, in seconds of the monotonic clock."""

    name: str
    start_s: float
    end_s: float


def operation_of(stats: RequestStats) -> str:
    """Return the operation: "chat" or "text_completion"."""
    path = stats.caller.path if stats.caller is not None else ""
    return OPERATIONS.get(path, "text_completion")


def phases_of(times: RequestTimes) -> list[Phase]:
    """Return queue, prefill and decode, as far as the request came, one after the other.

    A phase that the request did not see the end of lasts until it ended; decode lasts until the
    last token. No phase extends beyond the request.
    """
    marks = [times.arrival_s, times.scheduled_s, times.first_token_s]
    names = ["queue", "prefill", "decode"]
    reached = next((i for i, mark in enumerate(marks) if not mark), len(marks))
    last_s = times.last_token_s if reached == len(marks) else times.ended_s
    ends = [*marks[1:reached], last_s]
    phases = []
    start_s = times.arrival_s
    for name, end in zip(names, ends, strict=False):
        end_s = min(max(start_s, end), times.ended_s)
        phases.append(Phase(name=name, start_s=start_s, end_s=end_s))
        start_s = end_s
    return phases


def problem_of(stats: RequestStats) -> str | None:
    """Return why the request did not end as it should, or None."""
    if stats.finish_reason == "error":
        return stats.error or "the engine gave no reason."
    if stats.finish_reason == "abort":
        return "aborted: the client left, or asked for the end."
    return None


def attributes_of(stats: RequestStats, model: str, detail: Collection[str]) -> dict[str, Attribute]:
    """Return the attributes of the request's span. Times in seconds, lengths in tokens."""
    attributes: dict[str, Attribute] = {
        "gen_ai.operation.name": operation_of(stats),
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.request.id": stats.request_id,
        "gen_ai.request.model": model,
        "gen_ai.response.id": stats.request_id,
        "gen_ai.response.model": model,
        "gen_ai.response.finish_reasons": stats.finish_reasons or (stats.finish_reason,),
        "gen_ai.usage.input_tokens": stats.prompt_tokens,
        "gen_ai.usage.output_tokens": stats.generated_tokens,
        "gen_ai.usage.cache_read.input_tokens": stats.cached_tokens,
        **_sampling(stats),
        **_latency(stats, detail),
    }
    if stats.caller is not None:
        attributes["url.path"] = stats.caller.path
    if problem_of(stats) is not None:
        attributes["error.type"] = stats.finish_reason
    return attributes


def _sampling(stats: RequestStats) -> dict[str, Attribute]:
    sampling = stats.sampling
    attributes: dict[str, Attribute] = {
        "gen_ai.request.max_tokens": stats.max_tokens,
        "gen_ai.request.choice.count": stats.n,
        "gen_ai.request.temperature": sampling.temperature,
        "gen_ai.request.top_p": sampling.top_p,
        "gen_ai.request.presence_penalty": sampling.presence_penalty,
        "gen_ai.request.frequency_penalty": sampling.frequency_penalty,
    }
    if sampling.top_k > 0:
        attributes["gen_ai.request.top_k"] = sampling.top_k
    if sampling.seed is not None and sampling.seed < 1 << 63:
        attributes["gen_ai.request.seed"] = sampling.seed
    if sampling.stop:
        attributes["gen_ai.request.stop_sequences"] = sampling.stop
    return attributes


def _latency(stats: RequestStats, detail: Collection[str]) -> dict[str, Attribute]:
    attributes: dict[str, Attribute] = {
        "gen_ai.latency.time_in_queue": stats.queue_s,
        "gen_ai.latency.e2e": stats.e2e_s,
    }
    if stats.generated_tokens:
        attributes["gen_ai.latency.time_to_first_token"] = stats.ttft_s
        attributes["gen_ai.latency.time_in_model_prefill"] = stats.prefill_s
        attributes["gen_ai.latency.time_in_model_decode"] = stats.decode_s
        attributes["gen_ai.latency.time_in_model_inference"] = stats.prefill_s + stats.decode_s
    if "model" in detail:
        attributes["gen_ai.latency.time_in_model_forward"] = stats.forward_s
    if "worker" in detail:
        attributes["gen_ai.latency.time_in_model_execute"] = stats.execute_s
    return attributes

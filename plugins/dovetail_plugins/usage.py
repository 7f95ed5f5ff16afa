"""The counts and times of an answer in OpenAI's usage object, and when a stream has them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from dovetail.engine.client.results.outputs import RequestMetrics
from dovetail.errors import RequestError
from dovetail.server.endpoint import App, Reply, SamplingFields, Step, StreamOptions

StreamUsage = Literal["never", "at_end", "always"]
"""When the chunks of a stream contain the usage."""


class PromptTokensDetails(Reply):
    """The sources of the prompt tokens."""

    cached_tokens: int = 0


class CompletionTokensDetails(Reply):
    """The kinds of generated tokens."""

    reasoning_tokens: int = 0


class PredictionDetails(CompletionTokensDetails):
    """The same of an answer with a prediction: how many drafted tokens of it became a part of the
    answer, and how many did not."""

    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


class Usage(Reply):
    """Token counts. The cached ones are reported in DeepSeek's words as well."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    prompt_cache_hit_tokens: int | None = None
    prompt_cache_miss_tokens: int | None = None
    prompt_tokens_details: PromptTokensDetails | None = None
    completion_tokens_details: PredictionDetails | CompletionTokensDetails | None = None


class Timings(Reply):
    """How long one answer took, in milliseconds. `queue_time_ms` is from arrival to the first step,
    `time_to_first_token_ms` from there to the first token, `generation_time_ms` from there to the
    last."""

    time_to_first_token_ms: float | None = None
    generation_time_ms: float | None = None
    queue_time_ms: float | None = None
    mean_itl_ms: float | None = None
    tokens_per_second: float | None = None


@dataclass(slots=True, kw_only=True)
class UsageCounter:
    """The token counts of an answer so far, added up over several generations. `transfer` are the
    kv_transfer_params to return."""

    shows_cached: bool = False
    shows_reasoning: bool = False
    shows_predicted: bool = False
    prompt_tokens: dict[int, int] = field(default_factory=dict)
    generated_tokens: dict[int, int] = field(default_factory=dict)
    cached_tokens: dict[int, int] = field(default_factory=dict)
    reasoning_tokens: dict[int, int] = field(default_factory=dict)
    metrics: RequestMetrics | None = None
    transfer: dict[str, Any] | None = None
    is_several: bool = False

    def note(self, step: Step, which: int = 0) -> None:
        """Record a step of generation `which`. Mutates: self"""
        self.prompt_tokens[which] = step.num_prompt_tokens
        self.generated_tokens[which] = step.num_generated_tokens
        self.cached_tokens[which] = step.num_cached_tokens
        self.reasoning_tokens[which] = step.num_reasoning_tokens
        self.metrics = step.metrics
        self.transfer = step.transfer or self.transfer
        self.is_several |= step.index > 0

    def timings(self) -> Timings | None:
        """Return how long the answer took; None if several answers share the numbers."""
        if self.metrics is None or self.is_several or len(self.generated_tokens) != 1:
            return None
        (num_tokens,) = self.generated_tokens.values()
        return _timings(self.metrics, num_tokens)

    def usage(self) -> Usage:
        """Return OpenAI's usage object."""
        prompt = sum(self.prompt_tokens.values())
        generated = sum(self.generated_tokens.values())
        fields: dict[str, Any] = {"prompt_tokens_details": None, "completion_tokens_details": None}
        if self.shows_cached:
            cached = sum(self.cached_tokens.values())
            fields["prompt_tokens_details"] = PromptTokensDetails(cached_tokens=cached)
            fields["prompt_cache_hit_tokens"] = cached
            fields["prompt_cache_miss_tokens"] = prompt - cached
        if self.shows_reasoning or self.shows_predicted:
            fields["completion_tokens_details"] = self._details()
        return Usage(
            prompt_tokens=prompt,
            completion_tokens=generated,
            total_tokens=prompt + generated,
            **fields,
        )

    def _details(self) -> CompletionTokensDetails:
        reasoning = sum(self.reasoning_tokens.values()) if self.shows_reasoning else 0
        if not self.shows_predicted:
            return CompletionTokensDetails(reasoning_tokens=reasoning)
        drafted = 0 if self.metrics is None else self.metrics.num_draft_tokens
        accepted = 0 if self.metrics is None else self.metrics.num_accepted_tokens
        return PredictionDetails(
            reasoning_tokens=reasoning,
            accepted_prediction_tokens=accepted,
            rejected_prediction_tokens=drafted - accepted,
        )


def _timings(metrics: RequestMetrics, num_tokens: int) -> Timings:
    """Return the durations between the engine's timestamps; null if one is missing."""
    scheduled_s, first_s = metrics.first_scheduled_s, metrics.first_token_s
    if not scheduled_s or not first_s:
        return Timings()
    decode_s, whole_s = metrics.last_token_s - first_s, metrics.last_token_s - scheduled_s
    return Timings(
        time_to_first_token_ms=1e3 * (first_s - scheduled_s),
        generation_time_ms=1e3 * decode_s,
        queue_time_ms=1e3 * (scheduled_s - metrics.arrival_s),
        mean_itl_ms=1e3 * decode_s / (num_tokens - 1) if num_tokens > 1 else None,
        tokens_per_second=num_tokens / whole_s if whole_s > 0 else None,
    )


def shows_cached(server: App, body: SamplingFields) -> bool:
    """Return whether usage says how many prompt tokens came from the cache. It is left out where
    nobody counts them: without a cache, in a beam search, and after another engine's prefill."""
    is_fetched = (body.kv_transfer_params or {}).get("do_remote_prefill")
    is_counted = not body.use_beam_search and not is_fetched
    has_cache = server.text.engine.spec.cache.uses_prefix_cache
    return server.frontend.enable_prompt_tokens_details and has_cache and is_counted


def stream_usage(server: App, is_stream: bool, options: StreamOptions | None) -> StreamUsage:
    """Return when a stream sends the usage. Raises: RequestError for options without a stream"""
    if options is not None and not is_stream:
        raise RequestError("is only allowed when stream is true.", where="stream_options")
    if server.frontend.enable_force_include_usage:
        return "always"
    if options is None or not options.include_usage:
        return "never"
    return "always" if options.continuous_usage_stats else "at_end"

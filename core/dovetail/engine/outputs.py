"""What a caller gets back: deltas while a request runs, whole results offline.

Plain data inside one process. Knows neither engine messages nor HTTP.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from dovetail.interfaces.step import TokenLogprobs

PromptLogprobs = tuple[TokenLogprobs, ...]
"""Entry i belongs to prompt token i + 1; the first prompt token has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionDelta:
    """News of one of a request's n completions.

    `text` is new and final: no stop string and no half character is in it, so it may lag behind
    `token_ids`. `logprobs` pairs up with `token_ids`.
    """

    index: int
    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestMetrics:
    """When things happened to a request, in seconds of the monotonic clock; 0 is not yet."""

    arrival_s: float
    first_scheduled_s: float = 0.0
    first_token_s: float = 0.0
    last_token_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOutput:
    """News of one request. `prompt_logprobs` is in the first output only."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    deltas: tuple[CompletionDelta, ...] = ()
    is_finished: bool = False
    prompt_logprobs: PromptLogprobs | None = None
    num_cached_tokens: int = 0
    metrics: RequestMetrics | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One whole completion. `cumulative_logprob` is None unless logprobs were asked for."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] | None = None
    cumulative_logprob: float | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationResult:
    """One whole request, offline. `error` says why it ended with an error, else None."""

    request_id: str
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    outputs: tuple[Completion, ...]
    prompt_logprobs: PromptLogprobs | None = None
    num_cached_tokens: int = 0
    metrics: RequestMetrics | None = None
    error: str | None = None


def merge_deltas(first: CompletionDelta, second: CompletionDelta) -> CompletionDelta:
    """Return two consecutive deltas of one completion as one."""
    logprobs = None
    if first.logprobs is not None or second.logprobs is not None:
        logprobs = (first.logprobs or ()) + (second.logprobs or ())
    return CompletionDelta(
        index=first.index,
        text=first.text + second.text,
        token_ids=first.token_ids + second.token_ids,
        logprobs=logprobs,
        finish_reason=second.finish_reason,
        stop_reason=second.stop_reason,
    )


def merge(outputs: Iterable[RequestOutput]) -> RequestOutput:
    """Return consecutive outputs of one request as one."""
    ordered = list(outputs)
    if len(ordered) == 1:
        return ordered[0]
    deltas: dict[int, CompletionDelta] = {}
    for output in ordered:
        for delta in output.deltas:
            known = deltas.get(delta.index)
            deltas[delta.index] = delta if known is None else merge_deltas(known, delta)
    told = (o.prompt_logprobs for o in ordered if o.prompt_logprobs is not None)
    return replace(ordered[-1], deltas=tuple(deltas.values()), prompt_logprobs=next(told, None))

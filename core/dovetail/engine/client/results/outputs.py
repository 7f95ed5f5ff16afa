"""What a caller gets back: deltas while a request runs, whole results offline.

Plain data inside one process.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dovetail.interfaces.data.step import Pooled, TokenLogprobs


@dataclass(frozen=True, slots=True)
class Logprob:
    """The logprob of one token at one position. `rank` 1 is the most likely token."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


class LogprobsById(dict[int, Logprob]):
    """The logprobs at one position by token id: the token itself first, then the most likely ones.

    The attributes have the token itself and the others in order, as reported by the engine.
    """

    __slots__ = ("logprob", "rank", "token_id", "top_ids", "top_logprobs")

    def __init__(
        self, position: TokenLogprobs, texts: Mapping[int, str], *, are_ranked: bool = True
    ) -> None:
        """`are_ranked`: the other tokens are the most likely ones, in order, not requested ones."""
        own = {
            position.token_id: Logprob(
                position.logprob, position.rank, texts.get(position.token_id)
            )
        }
        others = zip(position.top_ids, position.top_logprobs, strict=True)
        top = {
            token_id: Logprob(logprob, place if are_ranked else None, texts.get(token_id))
            for place, (token_id, logprob) in enumerate(others, start=1)
        }
        super().__init__(own | top | own)
        self.token_id, self.logprob, self.rank = position.token_id, position.logprob, position.rank
        self.top_ids, self.top_logprobs = position.top_ids, position.top_logprobs


PromptLogprobs = tuple[TokenLogprobs, ...]
"""Entry i is for prompt token i + 1; the first prompt token has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionDelta:
    """New output of one of a request's n completions.

    `text` is new and final: it has no stop string and no partial character, so it may lag behind
    `token_ids`. `logprobs` pairs up with `token_ids`, and so does `num_chars`, the number of
    characters of `text` from each token.
    """

    index: int
    text: str = ""
    token_ids: tuple[int, ...] = ()
    num_chars: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestMetrics:
    """Times of a request's events, in seconds of the monotonic clock; 0 means not yet. And how many
    tokens were drafted for it, and accepted."""

    arrival_s: float
    first_scheduled_s: float = 0.0
    first_token_s: float = 0.0
    last_token_s: float = 0.0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOutput:
    """New output of one request. `prompt_logprobs` is in the first output only, `pooled` in the
    only output of a pooled prompt. `transfer` are the kv_transfer_params with which another engine
    continues, at the end of a request that wants them."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    deltas: tuple[CompletionDelta, ...] = ()
    is_finished: bool = False
    prompt_logprobs: PromptLogprobs | None = None
    num_cached_tokens: int = 0
    metrics: RequestMetrics | None = None
    pooled: Pooled | None = None
    transfer: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One whole completion. `logprobs` pairs up with `token_ids`. `cumulative_logprob` is None
    unless logprobs were requested."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: list[LogprobsById] | None = None
    cumulative_logprob: float | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None

    def finished(self) -> bool:
        """Return whether the completion has ended."""
        return self.finish_reason is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationResult:
    """One whole request, offline. `error` is its error text, else None. `prompt_logprobs` pairs up
    with the prompt's tokens; the first has none. `pooled` is the requested output other than tokens
    (see SamplingParams.alignment)."""

    request_id: str
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    outputs: tuple[Completion, ...]
    prompt_logprobs: list[LogprobsById | None] | None = None
    num_cached_tokens: int = 0
    metrics: RequestMetrics | None = None
    error: str | None = None
    pooled: Pooled | None = None

    @property
    def finished(self) -> bool:
        """Return True: results of an LLM are always whole."""
        return True


def numbers(pooled: Pooled) -> np.ndarray:
    """Return the pooled output as an array, float32."""
    return np.frombuffer(pooled.data, dtype=np.float32).reshape(pooled.shape)


def join_deltas(deltas: Sequence[CompletionDelta]) -> CompletionDelta:
    """Join consecutive deltas of one completion. Linear, however many there are."""
    if len(deltas) == 1:
        return deltas[0]
    last = deltas[-1]
    logprobs = None
    if any(delta.logprobs is not None for delta in deltas):
        logprobs = tuple(entry for delta in deltas for entry in delta.logprobs or ())
    return CompletionDelta(
        index=last.index,
        text="".join(delta.text for delta in deltas),
        token_ids=tuple(token_id for delta in deltas for token_id in delta.token_ids),
        num_chars=tuple(count for delta in deltas for count in delta.num_chars),
        logprobs=logprobs,
        finish_reason=last.finish_reason,
        stop_reason=last.stop_reason,
    )


def joined(deltas: Iterable[CompletionDelta]) -> list[CompletionDelta]:
    """Join consecutive deltas of a request into one per completion."""
    by_index: dict[int, list[CompletionDelta]] = {}
    for delta in deltas:
        by_index.setdefault(delta.index, []).append(delta)
    return [join_deltas(one) for one in by_index.values()]


def merge(outputs: Sequence[RequestOutput]) -> RequestOutput:
    """Join consecutive outputs of one request."""
    if len(outputs) == 1:
        return outputs[0]
    prompt_logprobs = (o.prompt_logprobs for o in outputs if o.prompt_logprobs is not None)
    return replace(
        outputs[-1],
        deltas=tuple(joined(delta for output in outputs for delta in output.deltas)),
        prompt_logprobs=next(prompt_logprobs, None),
    )

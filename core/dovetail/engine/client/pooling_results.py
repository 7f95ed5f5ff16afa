"""Whole results of requests that were pooled, offline: vectors, classes, scores, numbers.

Their `outputs` have the names that vLLM gives them. Plain data inside one process.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dovetail.engine.client.outputs import RequestMetrics, numbers
from dovetail.errors import RequestFault
from dovetail.interfaces.step import Pooled


@dataclass(frozen=True, slots=True, kw_only=True)
class PooledNumbers:
    """What became of a prompt, float32: a vector, or one for each of its tokens."""

    data: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedding:
    """The vector of a prompt."""

    embedding: list[float]

    @property
    def hidden_size(self) -> int:
        """Return the number of its dimensions."""
        return len(self.embedding)


@dataclass(frozen=True, slots=True, kw_only=True)
class Classes:
    """The probability of each class."""

    probs: list[float]

    @property
    def num_classes(self) -> int:
        """Return the number of the classes."""
        return len(self.probs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """How well two texts fit each other; the greater, the better."""

    score: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingResult:
    """One whole request. `error` says why it ended with an error, else None; where it did, there
    are no `outputs`."""

    request_id: str
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    pooled: Pooled | None = None
    num_cached_tokens: int = 0
    metrics: RequestMetrics | None = None
    error: str | None = None

    @property
    def data(self) -> np.ndarray:
        """Return the numbers, float32. Raises: RequestFault where the request failed"""
        if self.pooled is None:
            raise failed(self.error, self.request_id)
        return numbers(self.pooled)

    @property
    def outputs(self) -> PooledNumbers:
        """Return what became of the prompt. Raises: RequestFault where the request failed"""
        return PooledNumbers(data=self.data)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessedResult(PoolingResult):
    """What an IOProcessor made of data. The tokens are those of all prompts that it made."""

    answer: Any

    @property
    def outputs(self) -> Any:
        """Return the answer."""
        return self.answer


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingResult(PoolingResult):
    """The result of a prompt that was embedded."""

    @property
    def outputs(self) -> Embedding:  # type: ignore[override]
        """Return the vector. Raises: RequestFault where the request failed"""
        return Embedding(embedding=self.data.tolist())


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassificationResult(PoolingResult):
    """The result of a prompt that was classified."""

    @property
    def outputs(self) -> Classes:  # type: ignore[override]
        """Return the classes. Raises: RequestFault where the request failed"""
        return Classes(probs=self.data.tolist())


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoringResult:
    """The result of a pair of texts. The tokens are those of both. `error` says why it has no
    `outputs`, else None."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    score: float | None = None
    num_cached_tokens: int = 0
    error: str | None = None

    @property
    def outputs(self) -> Score:
        """Return the score. Raises: RequestFault where a request failed"""
        if self.score is None:
            raise failed(self.error, self.request_id)
        return Score(score=self.score)


def failed(error: str | None, request_id: str) -> RequestFault:
    """Return the error of asking for what a request did not bring."""
    return RequestFault(error or "the request has no result.", where=request_id)

"""Results of offline pooling requests: vectors, classes, scores, numbers.

Their `outputs` use vLLM's names. Plain data inside one process.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dovetail.engine.client.results.outputs import RequestMetrics, numbers
from dovetail.errors import RequestFault
from dovetail.interfaces.data.step import Pooled


@dataclass(frozen=True, slots=True, kw_only=True)
class PooledNumbers:
    """The pooled output of a prompt, float32: a vector, or one for each of its tokens."""

    data: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedding:
    """The vector of a prompt."""

    embedding: list[float]

    @property
    def hidden_size(self) -> int:
        """Return the number of dimensions."""
        return len(self.embedding)


@dataclass(frozen=True, slots=True, kw_only=True)
class Classes:
    """The probability of each class."""

    probs: list[float]

    @property
    def num_classes(self) -> int:
        """Return the number of classes."""
        return len(self.probs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """How well two texts match; higher is better."""

    score: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingResult:
    """One whole request. If `error` is not None, it failed with this text and has no outputs."""

    request_id: str
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    pooled: Pooled | None = None
    num_cached_tokens: int = 0
    metrics: RequestMetrics | None = None
    error: str | None = None

    @property
    def data(self) -> np.ndarray:
        """Return the numbers, float32. Raises: RequestFault if the request failed"""
        if self.pooled is None:
            raise failed(self.error, self.request_id)
        return numbers(self.pooled)

    @property
    def outputs(self) -> PooledNumbers:
        """Return the pooled output. Raises: RequestFault if the request failed"""
        return PooledNumbers(data=self.data)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessedResult(PoolingResult):
    """The answer of an IOProcessor. The tokens are those of all its prompts."""

    answer: Any

    @property
    def outputs(self) -> Any:
        """Return the answer."""
        return self.answer


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingResult(PoolingResult):
    """The result of an embedding request."""

    @property
    def outputs(self) -> Embedding:  # type: ignore[override]
        """Return the vector. Raises: RequestFault if the request failed"""
        return Embedding(embedding=self.data.tolist())


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassificationResult(PoolingResult):
    """The result of a classification request."""

    @property
    def outputs(self) -> Classes:  # type: ignore[override]
        """Return the classes. Raises: RequestFault if the request failed"""
        return Classes(probs=self.data.tolist())


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoringResult:
    """The result of a pair of texts, with the tokens of both. `error` is the error text if there
    are no `outputs`, else None."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    score: float | None = None
    num_cached_tokens: int = 0
    error: str | None = None

    @property
    def outputs(self) -> Score:
        """Return the score. Raises: RequestFault if a request failed"""
        if self.score is None:
            raise failed(self.error, self.request_id)
        return Score(score=self.score)


def failed(error: str | None, request_id: str) -> RequestFault:
    """Return the error for reading the result of a failed request."""
    return RequestFault(error or "the request has no result.", where=request_id)

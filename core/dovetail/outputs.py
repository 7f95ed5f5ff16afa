"""The results of LLM, under the names and import path of vLLM."""

from __future__ import annotations

from dovetail.engine.client.pooling.results import (
    ClassificationResult as ClassificationRequestOutput,
)
from dovetail.engine.client.pooling.results import EmbeddingResult as EmbeddingRequestOutput
from dovetail.engine.client.pooling.results import PoolingResult as PoolingRequestOutput
from dovetail.engine.client.pooling.results import ScoringResult as ScoringRequestOutput
from dovetail.engine.client.results.outputs import Completion as CompletionOutput
from dovetail.engine.client.results.outputs import GenerationResult as RequestOutput
from dovetail.engine.client.results.outputs import Logprob
from dovetail.llm.beams import BeamSearchOutput, BeamSearchSequence

__all__ = [
    "BeamSearchOutput",
    "BeamSearchSequence",
    "ClassificationRequestOutput",
    "CompletionOutput",
    "EmbeddingRequestOutput",
    "Logprob",
    "PoolingRequestOutput",
    "RequestOutput",
    "ScoringRequestOutput",
]

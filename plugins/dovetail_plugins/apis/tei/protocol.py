"""Bodies of text-embeddings-inference's API. Source: its API reference (openapi.json)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from dovetail.server.endpoint import INT31, MAX_NAME_CHARS, Body
from dovetail_plugins.apis._pool.fields import Inputs, Texts

Direction = Literal["Left", "left", "Right", "right"]
Sequence = Annotated[list[str], Field(min_length=1, max_length=2)]
"""A text, or a pair of texts."""


class CutFields(Body):
    """Truncation of long texts; without `truncate` they are refused."""

    truncate: bool = False
    truncation_direction: Direction = "Right"


class EmbedRequest(CutFields):
    """A request for the vectors of inputs, or of each of their tokens."""

    inputs: Inputs
    normalize: bool = True
    prompt_name: Annotated[str, Field(max_length=MAX_NAME_CHARS)] | None = None
    dimensions: Annotated[int, Field(ge=1, le=INT31)] | None = None


class EmbedSparseRequest(CutFields):
    """A request for the weights of the vocabulary's words in inputs."""

    inputs: Inputs
    prompt_name: Annotated[str, Field(max_length=MAX_NAME_CHARS)] | None = None


class PredictRequest(CutFields):
    """A request for the classes of a text, a pair of texts, or several of either."""

    inputs: str | Sequence | Annotated[list[Sequence], Field(min_length=1)]
    raw_scores: bool = False


class Sentences(Body):
    """A text, and the texts to compare it with."""

    source_sentence: str
    sentences: Texts


class SimilarityRequest(Body):
    """A request for the similarity of texts."""

    inputs: Sentences
    parameters: dict[str, Any] | None = None

"""Bodies of /score and /rerank.

Source: the HTTP API of `vllm serve`; the API references of Jina, Cohere and
text-embeddings-inference, rerank; the API page of llama.cpp's server, /reranking.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from dovetail.server.endpoint import INT31, Body
from dovetail_plugins.apis._pool.fields import PoolFields, Texts


class TextObject(Body):
    """A text as an object, as some clients send it."""

    text: str


Document = str | TextObject
Documents = Annotated[list[Document], Field(min_length=1)]


class ScoreRequest(PoolFields):
    """A request for the scores of pairs. Other servers' names of the two fields are accepted."""

    text_1: str | Texts
    text_2: str | Texts
    use_activation: bool | None = None
    activation: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def _other_names(cls, given: Any) -> Any:
        """Accept `queries` and `documents`, `data_1` and `data_2`."""
        if not isinstance(given, dict):
            return given
        names = {"queries": "text_1", "documents": "text_2", "data_1": "text_1", "data_2": "text_2"}
        return {names.get(key, key): value for key, value in given.items()}


class RerankRequest(PoolFields):
    """A request to sort documents by relevance to a query: `documents` in the format of Jina and
    Cohere, `texts` in that of text-embeddings-inference."""

    query: Document
    documents: Documents | None = None
    texts: Documents | None = None
    top_n: Annotated[int, Field(ge=0, le=INT31)] | None = None
    return_documents: bool | None = None
    use_activation: bool | None = None
    activation: bool | None = None
    raw_scores: bool = False
    return_text: bool = False
    truncate: bool = False
    truncation_direction: Literal["Left", "left", "Right", "right"] = "Right"

"""Bodies of /score and /rerank.

Source: the HTTP API of `vllm serve`; the API references of Jina, Cohere and
text-embeddings-inference, rerank; the API page of llama.cpp's server, /reranking.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from dovetail.server.endpoint import INT31, MAX_PARTS, Body
from dovetail_plugins.apis._pool.fields import PoolFields


class ScoredObject(Body):
    """A text or an image as an object: {"text"} or {"image"} as Jina's clients send it, {"content"}
    in parts as vLLM has it."""

    text: str | None = None
    image: str | None = None
    content: Annotated[list[dict[str, Any]], Field(min_length=1, max_length=MAX_PARTS)] | None = (
        None
    )

    @model_validator(mode="after")
    def _is_one(self) -> ScoredObject:
        if sum(one is not None for one in (self.text, self.image, self.content)) != 1:
            raise ValueError("give a text, an image or content")
        return self


Document = str | ScoredObject
Documents = Annotated[list[Document], Field(min_length=1)]


class ScoreRequest(PoolFields):
    """A request for the scores of pairs. Other servers' names of the two fields are accepted."""

    text_1: Document | Documents
    text_2: Document | Documents
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

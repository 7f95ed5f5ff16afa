"""Bodies of Cohere's embed. Source: Cohere's API reference, v2."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from dovetail.server.endpoint import INT31, MAX_NAME_CHARS, MAX_PARTS, Body
from dovetail_plugins.apis._pool.fields import Texts

EmbeddingType = Literal["float", "int8", "uint8", "binary", "ubinary", "base64"]


class CoherePart(Body):
    """A part of an input: a text, or an image by its URL."""

    type: Literal["text", "image_url"] = "text"
    text: str | None = None
    image_url: str | dict[str, Any] | None = None


class CohereInput(Body):
    """An input in parts: texts, which are joined, and images."""

    content: Annotated[list[CoherePart], Field(min_length=1, max_length=MAX_PARTS)]


class CohereEmbedRequest(Body):
    """A request for the vectors of texts or images, in one or more number types."""

    model: str | None = None
    texts: Texts | None = None
    inputs: Annotated[list[CohereInput], Field(min_length=1)] | None = None
    images: Texts | None = None
    input_type: Annotated[str, Field(max_length=MAX_NAME_CHARS)] | None = None
    embedding_types: Annotated[list[EmbeddingType], Field(min_length=1, max_length=6)] = ["float"]
    output_dimension: Annotated[int, Field(ge=1, le=INT31)] | None = None
    max_tokens: Annotated[int, Field(ge=1, le=INT31)] | None = None
    truncate: Literal["NONE", "START", "END"] = "END"
    priority: Annotated[int, Field(ge=0, le=999)] = 0

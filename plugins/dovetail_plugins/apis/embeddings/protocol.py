"""Bodies of /v1/embeddings. Source: the OpenAI API reference, embeddings."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from dovetail.server.endpoint import INT31
from dovetail_plugins.apis._pool.inputs import InputFields
from dovetail_plugins.apis._pool.vectors import Dtype, Endianness, Format


class EmbeddingRequest(InputFields):
    """A request for the vectors of inputs or a conversation."""

    encoding_format: Format | None = None
    embed_dtype: Dtype | None = None
    endianness: Endianness | None = None
    dimensions: Annotated[int, Field(ge=1, le=INT31)] | None = None
    normalize: bool | None = None
    use_activation: bool | None = None

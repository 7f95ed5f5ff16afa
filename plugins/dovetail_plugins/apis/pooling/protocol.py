"""Bodies of /pooling and /classify. Source: the HTTP API of `vllm serve`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from dovetail.server.endpoint import INT31
from dovetail_plugins.apis._pool.inputs import InputFields
from dovetail_plugins.apis._pool.vectors import Dtype, Endianness, Format

Task = Literal["embed", "classify", "token_embed", "token_classify", "encode", "score", "reward"]
"""The tasks of a model, and the former names of three of them."""


class ActivatedFields(InputFields):
    """Inputs, and whether class scores become probabilities; all three fields mean this."""

    use_activation: bool | None = None
    activation: bool | None = None
    softmax: bool | None = None

    def wants_activation(self) -> bool | None:
        """Return the requested activation; None: the model's default."""
        given = (self.use_activation, self.activation, self.softmax)
        return next((one for one in given if one is not None), None)


class PoolingRequest(ActivatedFields):
    """A request to pool inputs, or `data` that a plugin turns into inputs."""

    task: Task | None = None
    data: Any = None
    encoding_format: Format | None = None
    embed_dtype: Dtype | None = None
    endianness: Endianness | None = None
    dimensions: Annotated[int, Field(ge=1, le=INT31)] | None = None
    normalize: bool | None = None


class ClassifyRequest(ActivatedFields):
    """A request for the classes of inputs."""

"""Prompts of embedding vectors in a request's body."""

from __future__ import annotations

from dovetail.errors import RequestError
from dovetail.interfaces.data.spec import ModelSpec
from dovetail.multimodal.prompt import VectorPrompt
from dovetail.multimodal.vectors import FIELD

MAX_HEADER_BYTES = 1 << 16
"""Room for a file's header besides the vectors."""


def decode_vectors(text: str, model: ModelSpec, max_tokens: int) -> VectorPrompt:
    """Return the prompt in a base64 tensor, saved by safetensors or torch.save. Blocks.

    Raises: RequestError
    """
    from dovetail.multimodal.embeds import decode_embeddings  # imports torch

    max_bytes = max_tokens * model.hidden_size * 4 + MAX_HEADER_BYTES
    try:
        (vectors,) = decode_embeddings({FIELD: text}, max_bytes).values()
    except RequestError as error:
        error.where = FIELD
        raise
    return VectorPrompt(vectors=vectors)

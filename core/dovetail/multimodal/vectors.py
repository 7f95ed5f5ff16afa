"""Prompts of embedding vectors, one per position: checked against the model, and keyed by their
content for prefix caching."""

from __future__ import annotations

from dovetail.errors import RequestError
from dovetail.interfaces.data.media import READY, VECTORS, PartPlace, PromptPart, feature_of
from dovetail.interfaces.data.spec import ModelSpec
from dovetail.multimodal.prompt import PlacedPrompt, VectorPrompt, content_key

FIELD = "prompt_embeds"
NO_TOKEN = 0
"""Token id of vector positions; it is not looked up."""


def placed_vectors(prompt: VectorPrompt, model: ModelSpec, *, is_taken: bool) -> PlacedPrompt:
    """Return a prompt of vectors in the engine's form. Raises: RequestError for vectors that do not
    fit the model, and for all vectors unless `is_taken` (--enable-prompt-embeds)"""
    import torch

    check_taken(is_taken=is_taken)
    vectors = prompt.vectors
    if not isinstance(vectors, torch.Tensor) or not vectors.is_floating_point():
        raise RequestError("must be a tensor of floating-point numbers.", where=FIELD)
    if vectors.dim() == 3 and len(vectors) == 1:
        vectors = vectors[0]
    if vectors.dim() != 2 or vectors.shape[1] != model.hidden_size or not len(vectors):
        raise RequestError(
            f"a tensor of shape {list(prompt.vectors.shape)} is not a prompt of this model: "
            f"[tokens, {model.hidden_size}] is.",
            where=FIELD,
            fix=f"send one vector of {model.hidden_size} numbers for each token.",
        )
    tensor = vectors.detach().to("cpu", getattr(torch, model.dtype))
    if not bool(torch.isfinite(tensor).all()):
        raise RequestError(f"not all values are finite in {model.dtype}.", where=FIELD)
    feature = feature_of(READY, tensor)
    key = content_key(VECTORS, feature.dtype, feature.data)
    place = PartPlace(key, VECTORS, ((0, len(tensor)),), len(tensor))
    part = PromptPart(place=place, features=(feature,))
    return PlacedPrompt(token_ids=(NO_TOKEN,) * len(tensor), parts=(part,))


def check_taken(*, is_taken: bool) -> None:
    """Raise RequestError unless vectors are accepted as prompts."""
    if not is_taken:
        raise RequestError(
            "prompts as embeddings are not accepted.",
            where=FIELD,
            fix="start the server (or LLM) with --enable-prompt-embeds, or send text.",
            code="unsupported_field",
        )


def has_no_tokens(prompt: PlacedPrompt) -> bool:
    """Return whether a prompt has only vectors: then there are no tokens to report."""
    return len(prompt.parts) == 1 and prompt.parts[0].place.runs == ((0, len(prompt.token_ids)),)

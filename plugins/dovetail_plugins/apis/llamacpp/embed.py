"""POST /embedding and /embeddings: the vectors of texts in llama.cpp's format.

Source: the API page of llama.cpp's server.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from fastapi import Request

from dovetail.errors import RequestError
from dovetail.interfaces.data.pooling_params import EMBED, TOKEN_EMBED, PoolingParams
from dovetail.server.endpoint import App, ModelText, ServerOf
from dovetail_plugins.apis._pool.inputs import pooling_of
from dovetail_plugins.apis._pool.replies import raw_reply
from dovetail_plugins.apis._pool.vectors import VectorFormat
from dovetail_plugins.apis._pool.work import answered, array_of, check_inputs, job_of
from dovetail_plugins.apis.llamacpp.errors import not_supported
from dovetail_plugins.apis.llamacpp.prompts import sent_prompts, token_ids
from dovetail_plugins.apis.llamacpp.protocol import LlamaEmbedRequest

NONE, MAX_ABSOLUTE, EUCLIDEAN = -1, 0, 2
INT16_MAX = 32760.0
"""The largest absolute value of a vector that is scaled to 16 bits."""


async def embed(body: LlamaEmbedRequest, request: Request, server: ServerOf) -> Any:
    """Return the vectors of texts; of each of their tokens, if the model does not pool them."""
    field = "input" if body.content is None else "content"
    if body.content is not None and body.input is not None:
        raise RequestError("give either content or input.", where="content")
    text, model = await server.text_for(body.model)
    ignored = server.fields.check(body)
    prompts = await _prompts(text, getattr(body, field), field)
    job = job_of(
        body,
        request,
        prompts,
        _params(server, body),
        field=field,
        is_list=len(prompts) > 1,
        adapter=server.engine.spec.adapter_of(model),
    )
    norm = body.embd_normalize if _pools(server) else NONE
    written = VectorFormat().written

    def vectors(output: Any) -> Any:
        return written(np.atleast_2d(normalized(array_of(output), norm)))

    answers = await answered(server, job, vectors)
    found = [{"index": index, "embedding": one} for index, one in enumerate(answers.items)]
    return raw_reply(found, ignored)


async def _prompts(text: ModelText, value: Any, field: str) -> list[Any]:
    """Return texts as they are, and lists of ids and texts as ids. Raises: RequestError"""
    prompts: list[Any] = []
    for sent in sent_prompts(value, field):
        if sent.media:
            raise not_supported("vectors of media are not made on this path.", where=sent.where)
        first, is_text = sent.pieces[0], len(sent.pieces) == 1 and isinstance(sent.pieces[0], str)
        prompts.append(first if is_text else await token_ids(text, sent.pieces))
    check_inputs(prompts, field, is_list=len(prompts) > 1)
    return prompts


def _pools(server: App) -> bool:
    return EMBED in pooling_of(server.engine).tasks


def _params(server: App, body: LlamaEmbedRequest) -> PoolingParams:
    if not _pools(server):
        return PoolingParams(task=TOKEN_EMBED, is_normalized=False)
    return PoolingParams(task=EMBED, is_normalized=body.embd_normalize == EUCLIDEAN)


def normalized(vector: np.ndarray, norm: int) -> np.ndarray:
    """Return a vector in the norm that `embd_normalize` names. Shapes: [D] or [n, D] float32"""
    if norm in (NONE, EUCLIDEAN):
        return vector
    sizes = np.abs(vector)
    if norm == MAX_ABSOLUTE:
        length = sizes.max(axis=-1, keepdims=True) / INT16_MAX
    else:
        peak = sizes.max(axis=-1, keepdims=True)
        scaled = sizes / np.where(peak > 0, peak, 1)
        length = peak * (scaled.astype(np.float64) ** norm).sum(axis=-1, keepdims=True) ** (
            1 / norm
        )
    return (vector / np.where(length > 0, length, 1)).astype(np.float32)

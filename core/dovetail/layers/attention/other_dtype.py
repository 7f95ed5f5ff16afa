"""Attention in a different dtype than the surrounding layers.

Queries, keys and values are cast to that dtype for the backend, and its output is cast back. The
dtype of the KV cache is a separate setting.
"""

from __future__ import annotations

from typing import Any

import torch
from msgspec import structs

from dovetail.interfaces.attention import AttentionBackend, AttentionCall, BatchLayout
from dovetail.layers.dtypes import dtype_of


class AttentionInDtype(AttentionBackend):
    """A backend that gets another dtype than the layers compute in. It claims no capabilities: the
    backend is already chosen. Latent attention, whose long rows use no backend, is left out."""

    def __init__(self, backend: AttentionBackend, dtype: torch.dtype) -> None:
        super().__init__(backend.options)
        self._backend, self._dtype = backend, dtype

    def kv_shape(
        self, num_blocks: int, block_tokens: int, num_kv_heads: int, head_size: int
    ) -> tuple[int, ...]:
        """Return the shape of one layer's cache tensor."""
        return self._backend.kv_shape(num_blocks, block_tokens, num_kv_heads, head_size)

    def prepare(self, layout: BatchLayout) -> Any:
        """Return the backend's prepared layout."""
        return self._backend.prepare(layout)

    def _cast(self, call: AttentionCall) -> AttentionCall:
        """Return the call in the backend's dtype; sinks and biases keep theirs."""
        q, k, v = (None if x is None else x.to(self._dtype) for x in (call.q, call.k, call.v))
        return structs.replace(call, q=q, k=k, v=v)

    def forward(self, call: AttentionCall) -> torch.Tensor:
        """Write k and v into the cache, then attend. Shapes: as the backend's. Mutates: cache"""
        return self._backend.forward(self._cast(call)).to(call.q.dtype)

    def forward_lse(self, call: AttentionCall) -> tuple[torch.Tensor, torch.Tensor]:
        """Do the same as `forward`, and return the log-sum-exps of scores. Mutates: cache"""
        out, lse = self._backend.forward_lse(self._cast(call))
        return out.to(call.q.dtype), lse

    def forward_biased(self, call: AttentionCall) -> torch.Tensor:
        """Do the same as `forward` with biases on scores, which stay float32. Mutates: cache"""
        return self._backend.forward_biased(self._cast(call)).to(call.q.dtype)

    def forward_cross(self, call: AttentionCall) -> torch.Tensor:
        """Attend to all of another sequence. Shapes: as the backend's. Mutates: cache"""
        return self._backend.forward_cross(self._cast(call)).to(call.q.dtype)

    def forward_shared(self, call: AttentionCall) -> torch.Tensor:
        """Attend to the cache that another layer has written. Shapes: as the backend's"""
        return self._backend.forward_shared(self._cast(call)).to(call.q.dtype)


def in_dtype(backend: AttentionBackend, dtype: str, model_dtype: str) -> AttentionBackend:
    """Return a backend that attends in `dtype`; the backend itself if `dtype` is empty or the
    model's."""
    if dtype in ("", model_dtype):
        return backend
    return AttentionInDtype(backend, dtype_of(dtype))

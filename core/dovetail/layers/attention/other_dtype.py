"""Attention in a different dtype than the surrounding layers.

Queries, keys and values are cast to that dtype for the backend, and its output is cast back. The
dtype of the KV cache is a separate setting.
"""

from __future__ import annotations

from typing import Any

import torch

from dovetail.interfaces.attention import AttentionBackend, AttentionSpec, BatchLayout
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

    def _cast(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return q.to(self._dtype), k.to(self._dtype), v.to(self._dtype)

    def forward(
        self,
        spec: AttentionSpec,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        cache: torch.Tensor,
        prepared: Any,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Write k and v into the cache, then attend. Shapes: as the backend's. Mutates: cache"""
        given = self._cast(q, k, v)
        return self._backend.forward(spec, *given, cache, prepared, sinks).to(q.dtype)

    def forward_lse(
        self,
        spec: AttentionSpec,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        cache: torch.Tensor,
        prepared: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Do the same as `forward`, and return the log-sum-exps of scores. Mutates: cache"""
        given = self._cast(q, k, v)
        out, lse = self._backend.forward_lse(spec, *given, cache, prepared)
        return out.to(q.dtype), lse

    def forward_biased(
        self,
        spec: AttentionSpec,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        cache: torch.Tensor,
        prepared: Any,
        bias: torch.Tensor,
    ) -> torch.Tensor:
        """Do the same as `forward` with biases on scores, which stay float32. Mutates: cache"""
        given = self._cast(q, k, v)
        return self._backend.forward_biased(spec, *given, cache, prepared, bias).to(q.dtype)

    def forward_cross(
        self,
        spec: AttentionSpec,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        cache: torch.Tensor,
        prepared: Any,
    ) -> torch.Tensor:
        """Attend to all of another sequence. Shapes: as the backend's. Mutates: cache"""
        given = self._cast(q, k, v)
        return self._backend.forward_cross(spec, *given, cache, prepared).to(q.dtype)

    def forward_shared(
        self,
        spec: AttentionSpec,
        q: torch.Tensor,
        cache: torch.Tensor,
        prepared: Any,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Attend to the cache that another layer has written. Shapes: as the backend's"""
        own = q.to(self._dtype)
        return self._backend.forward_shared(spec, own, cache, prepared, sinks).to(q.dtype)


def in_dtype(backend: AttentionBackend, dtype: str, model_dtype: str) -> AttentionBackend:
    """Return a backend that attends in `dtype`; the backend itself if `dtype` is empty or the
    model's."""
    if dtype in ("", model_dtype):
        return backend
    return AttentionInDtype(backend, dtype_of(dtype))

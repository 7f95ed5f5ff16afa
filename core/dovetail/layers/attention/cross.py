"""CrossCache: a layer's handle on the keys and values of encodings that its queries attend to."""

from __future__ import annotations

import torch

from dovetail import moved
from dovetail.interfaces.attention import AttentionCall, AttentionSpec
from dovetail.interfaces.data.spec import RunSpec
from dovetail.interfaces.data.step import CrossLayer
from dovetail.layers.context import forward_context
from dovetail.layers.kept import CachingLayer

__getattr__ = moved.attributes(__name__)


class CrossCache(CachingLayer):
    """One layer's handle on the cache of encodings; it owns no weights and no memory."""

    def __init__(self, name: str, spec: AttentionSpec, max_rows: int) -> None:
        super().__init__(name)
        self.spec = spec
        self.max_rows = max_rows

    def kept(self, run: RunSpec) -> CrossLayer:
        """Return this rank's cached keys and values of a request's encodings."""
        return CrossLayer(
            name=self.name,
            num_kv_heads=self.spec.num_kv_heads,
            head_size=self.spec.head_size,
            dtype=run.kv_dtype,
            max_rows=self.max_rows,
        )

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Return the attended values. Shapes: q [T, H*D], k and v [W, H*D] -> [T, H*D]"""
        spec, context = self.spec, forward_context()
        cache = context.caches[self.name]
        assert isinstance(cache, torch.Tensor)
        heads = (spec.num_heads, spec.head_size)
        call = AttentionCall(
            spec=spec,
            q=q.unflatten(-1, heads),
            k=k.unflatten(-1, heads),
            v=v.unflatten(-1, heads),
            cache=cache,
            prepared=context.prepared[self.name],
        )
        return context.backend.forward_cross(call).flatten(-2)

"""Attention: one layer's handle on the paged KV cache, through whichever backend was chosen.

Owns no weights and no memory; it knows its name and shape, the forward context knows the rest.
"""

from __future__ import annotations

import torch
from torch import nn

from dovetail.interfaces.attention import AttentionSpec
from dovetail.interfaces.step import KVLayer
from dovetail.layers.context import forward_context


class Attention(nn.Module):
    """Attention of this rank's heads. `name` is unique in the model and names the layer's cache."""

    def __init__(self, name: str, spec: AttentionSpec) -> None:
        super().__init__()
        self.name = name
        self.spec = spec

    def kv_layer(self, dtype: str) -> KVLayer:
        """Return what this layer caches when the cache holds `dtype`."""
        return KVLayer(
            name=self.name,
            num_kv_heads=self.spec.num_kv_heads,
            head_size=self.spec.head_size,
            dtype=dtype,
            window_tokens=self.spec.window_tokens,
        )

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the attended values. Shapes: q [T, H*D], k and v [T, K*D] -> [T, H*D]"""
        spec, context = self.spec, forward_context()
        out = context.backend.forward(
            spec,
            q.unflatten(-1, (spec.num_heads, spec.head_size)),
            k.unflatten(-1, (spec.num_kv_heads, spec.head_size)),
            v.unflatten(-1, (spec.num_kv_heads, spec.head_size)),
            context.caches[self.name],
            context.prepared[self.name],
            sinks,
        )
        return out.flatten(-2)


def attention_layers(model: nn.Module) -> list[Attention]:
    """Return the attention layers of a model in the order in which they were built."""
    return [module for module in model.modules() if isinstance(module, Attention)]

"""Attention: one layer's handle on the paged KV cache, through the selected backend.

If every token sees all others of its row (no causal mask), nothing is cached between steps: such
layers share one memory, which is valid within a layer.

Owns no weights and no memory: it knows its name and shape; the forward context has the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import nn

from dovetail.interfaces.attention import AttentionCall, AttentionSpec
from dovetail.interfaces.data.spec import RunSpec
from dovetail.interfaces.data.step import KVLayer
from dovetail.layers.context import forward_context
from dovetail.layers.kept import CachingLayer
from dovetail.layers.opaque import CompilerBoundary


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredScale:
    """A scale tensor from the checkpoint, not parsed yet."""

    name: str
    tensor: torch.Tensor


class Attention(CachingLayer):
    """Attention of this rank's heads. `name` is unique in the model and names the layer's cache.

    `stored_scales` are the checkpoint's scales of cached data, by what they scale. While `steps` is
    set, a forward pass measures the scales.
    """

    def __init__(self, name: str, spec: AttentionSpec) -> None:
        super().__init__(name)
        self.spec = spec
        self.stored_scales: dict[str, StoredScale] = {}
        self.steps: tuple[float, float] | None = None
        self._opaque = CompilerBoundary(self._attend)

    def kept(self, run: RunSpec) -> KVLayer | None:
        """Return the cached keys and values of this rank, None without a causal mask."""
        if not self.spec.is_causal:
            return None
        return self.kv_layer(run.kv_dtype, run.rank.context_size)

    def kv_layer(self, dtype: str, context_size: int = 1, *, is_draft: bool = False) -> KVLayer:
        """Return this layer's cache spec for `dtype`, on one of `context_size` ranks that divide
        it. `is_draft`: the layer is a drafter's. A chunk limits the visible tokens like a window of
        its length."""
        return KVLayer(
            name=self.name,
            num_kv_heads=self.spec.num_kv_heads,
            head_size=self.spec.head_size,
            dtype=dtype,
            window_tokens=self.spec.window_tokens or self.spec.chunk_tokens,
            context_size=context_size,
            is_draft=is_draft,
        )

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        sinks: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the attended values; `bias` is as in `AttentionBackend.forward_biased`.

        Shapes: q [T, H*D], k and v [T, K*D], bias [H, 2 M - 1] -> [T, H*D]
        """
        return self._opaque(q, k, v, sinks, bias, size=self.spec.num_heads * self.spec.head_size)

    def _attend(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        sinks: torch.Tensor | None,
        bias: torch.Tensor | None,
    ) -> torch.Tensor:
        if self.steps is not None:
            self.spec = _measured(self.spec, k, v, self.steps)
        spec, context = self.spec, forward_context()
        cache = context.caches[self.name]
        assert isinstance(cache, torch.Tensor)
        call = AttentionCall(
            spec=spec,
            q=q.unflatten(-1, (spec.num_heads, spec.head_size)),
            k=k.unflatten(-1, (spec.num_kv_heads, spec.head_size)),
            v=v.unflatten(-1, (spec.num_kv_heads, spec.head_size)),
            cache=cache,
            prepared=context.prepared[self.name],
            sinks=sinks,
            bias=bias,
        )
        backend = context.backend
        out = backend.forward(call) if bias is None else backend.forward_biased(call)
        return out.flatten(-2)


def attention_layers(model: nn.Module) -> list[Attention]:
    """Return the attention layers of a model in construction order."""
    return [module for module in model.modules() if isinstance(module, Attention)]


def step_layers(layers: Sequence[Attention], run: RunSpec) -> list[KVLayer]:
    """Return the memory specs of layers that cache nothing between steps."""
    return [layer.kv_layer(run.kv_dtype) for layer in layers if not layer.spec.is_causal]


@contextmanager
def measuring(layers: Sequence[Attention], steps: tuple[float, float]) -> Iterator[None]:
    """Measure the scales of the layers' caches in the forward pass inside the with block: its
    largest key and value become `steps` in the cache.

    Mutates: the specs of the layers
    """
    for layer in layers:
        layer.steps = steps
    try:
        yield
    finally:
        for layer in layers:
            layer.steps = None


def _measured(
    spec: AttentionSpec, k: torch.Tensor, v: torch.Tensor, steps: tuple[float, float]
) -> AttentionSpec:
    """Return the spec with scales that map the largest key and value to `steps`."""
    return replace(
        spec, k_scale=_largest(k) / steps[0] or 1.0, v_scale=_largest(v) / steps[1] or 1.0
    )


def _largest(x: torch.Tensor) -> float:
    """Return the largest finite magnitude; 0 if all are 0 or nothing is finite."""
    return float(x.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0).abs().amax())

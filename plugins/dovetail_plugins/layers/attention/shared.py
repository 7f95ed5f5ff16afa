"""SharedAttention: attention of a layer without its own cache, which reads another layer's.

Its queries see the keys and values of its source, including the running step's: the source precedes
it in the model. Owns no weights and no memory.
Source: Sun et al., "You only cache once", 2024; Brandon et al., "Reducing transformer key-value
cache size with cross-layer attention", 2024
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import nn

from dovetail.errors import ConfigError
from dovetail.interfaces.attention import AttentionCall, AttentionSpec
from dovetail.layers.attention import Attention, attention_layers
from dovetail.layers.context import DrawnTokens, forward_context
from dovetail.layers.opaque import CompilerBoundary, is_traced


class SharedAttention(nn.Module):
    """Attention of this rank's heads over the cache of the layer named `shares`; see
    `find_sources`. The spec's KV heads are the source's."""

    def __init__(self, name: str, spec: AttentionSpec, *, shares: str) -> None:
        super().__init__()
        if not spec.is_causal:
            raise ConfigError(
                "layers whose tokens see all others keep nothing that others could read.",
                where=name,
                fix="serve the model with causal attention.",
            )
        self.name, self.shares, self.spec = name, shares, spec
        self._source: tuple[Attention, ...] = ()  # not a part of this module
        self._opaque = CompilerBoundary(self._attend)

    def read_from(self, source: Attention) -> None:
        """Take the layer whose cache is read. Mutates: self"""
        own, theirs = self.spec, source.spec
        assert (own.num_kv_heads, own.head_size) == (theirs.num_kv_heads, theirs.head_size)
        assert own.window_tokens == theirs.window_tokens, "the source forgets what is needed"
        self._source = (source,)

    def forward(self, q: torch.Tensor, sinks: torch.Tensor | None = None) -> torch.Tensor:
        """Return the attended values. Shapes: q [T, H*D] -> [T, H*D]"""
        return self._opaque(q, sinks, size=self.spec.num_heads * self.spec.head_size)

    def _attend(self, q: torch.Tensor, sinks: torch.Tensor | None) -> torch.Tensor:
        (source,), spec, context = self._source, self.spec, forward_context()
        scales = source.spec.k_scale, source.spec.v_scale
        if scales != (spec.k_scale, spec.v_scale):  # they may be measured when the layer exists
            spec = self.spec = replace(spec, k_scale=scales[0], v_scale=scales[1])
        cache = context.caches[self.shares]
        assert isinstance(cache, torch.Tensor)
        prepared = context.prepared if context.drawn is None else context.drawn.prepared
        call = AttentionCall(
            spec=spec,
            q=q.unflatten(-1, (spec.num_heads, spec.head_size)),
            cache=cache,
            prepared=prepared[self.shares],
            sinks=sinks,
        )
        return context.backend.forward_shared(call).flatten(-2)


def find_sources(model: nn.Module) -> None:
    """Connect the layers of a model that share caches to their sources. Mutates: those layers

    Raises: ConfigError if a source is not in this part of the model: it is on another stage.
    """
    known = {layer.name: layer for layer in attention_layers(model)}
    for layer in shared_layers(model):
        if layer.shares not in known:
            raise ConfigError(
                f"{layer.name} reads the keys and values of {layer.shares}, which is not here.",
                where="--pipeline-parallel-size",
                fix="divide the layers so that both are on one stage.",
            )
        layer.read_from(known[layer.shares])


def shared_layers(model: nn.Module) -> Sequence[SharedAttention]:
    """Return the layers of a model that read other layers' caches, in the order they were built."""
    return [module for module in model.modules() if isinstance(module, SharedAttention)]


def drawn_tokens() -> DrawnTokens | None:
    """Return the tokens of the running step that layers without a cache need to compute, None for
    all. A model that calls it skips the other tokens from its first such layer on."""
    return None if is_traced() else forward_context().drawn


def spread(x: torch.Tensor, tokens: torch.Tensor, num_tokens: int) -> torch.Tensor:
    """Return rows at their tokens' positions, zeros for all others.

    Shapes: x [S, E], tokens [S] -> [num_tokens, E]
    """
    return x.new_zeros(num_tokens, x.shape[-1]).index_copy_(0, tokens, x)

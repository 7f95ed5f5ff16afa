"""One step on the native attention kernel: a layout becomes its struct, a layer's call sets the
rest.
"""

from __future__ import annotations

import torch

from dovetail.interfaces.attention import (
    AttentionCall,
    AttentionSpec,
    BatchLayout,
    IndexCall,
    LatentCall,
)
from dovetail_kernels.index_picks.native import index_picks
from dovetail_kernels.latent_attention.native import Step as LatentStep
from dovetail_kernels.paged_attention.native import Step


class NativeStep:
    """A step's rows in the kernel's struct, and the rules of the layer that ran last; in that of
    latents, once a layer keeps such."""

    __slots__ = ("latents", "layout", "may_round", "spec", "step")

    def __init__(self, step: Step, layout: BatchLayout, *, may_round: bool) -> None:
        self.step = step
        self.layout = layout
        self.may_round = may_round
        self.spec: AttentionSpec | None = None
        self.latents: LatentStep | None = None


def prepare(layout: BatchLayout, *, may_round: bool) -> NativeStep:
    """Return a step as the layers of one KV group need it.

    `may_round`: round queries and weights to bfloat16 if keys are, and the machine gains by it.
    """
    return NativeStep(
        Step(
            block_table=layout.block_table,
            query_start=layout.query_start,
            seq_lens=layout.seq_lens,
            slots=layout.slots,
            block_tokens=layout.block_tokens,
        ),
        layout,
        may_round=may_round,
    )


def forward(call: AttentionCall, lse: torch.Tensor | None = None) -> torch.Tensor:
    """Write k and v, if there are any, then attend (see `AttentionBackend.forward`).

    Shapes: lse [T, H]

    Mutates: cache, prepared, lse
    """
    spec, prepared, sinks = call.spec, call.prepared, call.sinks
    assert call.q.dtype is torch.float32, "why_not let another dtype pass"
    if spec is not prepared.spec:
        prepared.spec = spec
        prepared.step.set_rules(
            num_heads=spec.num_heads,
            num_kv_heads=spec.num_kv_heads,
            head_size=spec.head_size,
            scale=spec.scale,
            window=spec.window_tokens,
            chunk=spec.chunk_tokens,
            soft_cap=spec.soft_cap,
            is_causal=spec.is_causal,
            may_round=prepared.may_round,
            rotates=call.cache.dtype is torch.int8,
            k_scale=spec.k_scale,
            v_scale=spec.v_scale,
            alibi_slopes=spec.alibi_slopes,
        )
    size = spec.head_size
    if sinks is not None:
        sinks = sinks.float().contiguous()
    k, v = (None if x is None else _whole(x, size) for x in (call.k, call.v))
    q = _whole(call.q, size)
    out: torch.Tensor = prepared.step(q, k, v, call.cache, sinks, lse, call.bias)
    return out


def forward_lse(call: AttentionCall) -> tuple[torch.Tensor, torch.Tensor]:
    """Run `AttentionBackend.forward_lse`. Mutates: cache, prepared"""
    lse = torch.empty(call.q.shape[:2])
    return forward(call, lse), lse


def forward_latent(call: LatentCall) -> torch.Tensor:
    """Run `AttentionBackend.forward_latent`, or `forward_picked` if there are picks.
    Mutates: cache, prepared"""
    assert call.q.dtype is torch.float32, "why_not let another dtype pass"
    spec, prepared = call.spec, call.prepared
    if prepared.latents is None:
        layout = prepared.layout
        prepared.latents = LatentStep(
            block_table=layout.block_table,
            query_start=layout.query_start,
            seq_lens=layout.seq_lens,
            slots=layout.slots,
            block_tokens=layout.block_tokens,
        )
    out: torch.Tensor = prepared.latents(
        _whole(call.q, spec.size),
        _side_by_side(call.latent),
        call.cache,
        spec.scale,
        spec.latent_size,
        may_round=prepared.may_round,
        picks=call.picks,
        sinks=call.sinks,
    )
    return out


def pick(call: IndexCall) -> torch.Tensor:
    """Run `AttentionBackend.pick`."""
    layout, spec = call.prepared.layout, call.spec
    rows = (layout.block_table, layout.query_start, layout.seq_lens)
    q = _whole(call.q, spec.head_size)
    return index_picks(q, _side_by_side(call.weights), call.keys, *rows, spec.num_picked)


def _side_by_side(x: torch.Tensor) -> torch.Tensor:
    """Return x with each token's numbers contiguous; tokens may be strided."""
    return x if x.stride(1) == 1 else x.contiguous()


def _whole(x: torch.Tensor, size: int) -> torch.Tensor:
    """Return x with heads at a stride of `size`; unchanged if only the tokens are strided."""
    strides = x.stride()
    return x if strides[1] == size and strides[2] == 1 else x.contiguous()

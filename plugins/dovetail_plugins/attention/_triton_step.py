"""One step on the Triton kernels: prepares the host's facts from a layout; a layer's call writes
its keys and attends.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import torch

from dovetail.errors import ConfigError
from dovetail.interfaces.attention import (
    AttentionCall,
    AttentionSpec,
    BatchLayout,
    IndexCall,
    LatentCall,
)
from dovetail.layers.attention.latent_rows import write_latents
from dovetail_kernels.cache_write.triton import run as write
from dovetail_kernels.cache_write.triton_packed import run as write_packed
from dovetail_kernels.index_picks.triton import index_picks
from dovetail_kernels.integer_caches import bits_of
from dovetail_kernels.latent_attention.triton import attend as attend_latents
from dovetail_kernels.paged_attention.rotation import rotated_keys, rotated_queries
from dovetail_kernels.paged_attention.triton import LayerRules, StepExtent, attend
from dovetail_kernels.paged_attention.triton_packed import parts_of as packed_parts_of
from dovetail_plugins.attention._alibi import slopes_on

E4M3_CAPABILITY = (8, 9)
"""Older GPUs do not turn this type into another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TritonStep:
    """A step's layout, and the sizes that decide which kernels run."""

    layout: BatchLayout
    extent: StepExtent


def prepare(layout: BatchLayout) -> TritonStep:
    """Return a step as the layers of one KV group need it."""
    starts = layout.query_start_host
    extent = StepExtent(
        max_query_tokens=layout.max_query_tokens,
        max_seq_tokens=layout.max_seq_tokens,
        has_decodes=any(end - start == 1 for start, end in pairwise(starts)),
    )
    return TritonStep(layout=layout, extent=extent)


def forward(call: AttentionCall, lse: torch.Tensor | None = None) -> torch.Tensor:
    """Write k and v, if there are any, then attend (see `AttentionBackend.forward`).
    Shapes: lse [T, H]

    Mutates: cache, lse
    """
    spec, q, k, v, stored = call.spec, call.q, call.k, call.v, call.cache
    if stored.dtype == torch.float8_e4m3fn:
        _check_e4m3(stored.device)
    layout, extent = call.prepared.layout, call.prepared.extent
    numbers, scales, bits = parts_of(stored, spec.head_size)
    if k is not None and v is not None and len(k):
        k = k if scales is None else rotated_keys(k)
        if scales is not None and bits != (8, 8):
            write_packed(_whole(k), _whole(v), numbers, layout.slots, scales, bits)
        else:
            write(_whole(k), _whole(v), numbers, layout.slots, scales, spec.k_scale, spec.v_scale)
    q = _whole(q if scales is None else rotated_queries(q))
    rows = (layout.block_table, layout.query_start, layout.seq_lens)
    slopes = None if spec.alibi_slopes is None else slopes_on(q.device, spec.alibi_slopes)
    return attend(q, numbers, *rows, _rules(spec), extent, call.sinks, scales, lse, slopes, bits)


def forward_lse(call: AttentionCall) -> tuple[torch.Tensor, torch.Tensor]:
    """Run `AttentionBackend.forward_lse`. Mutates: cache"""
    lse = torch.empty(call.q.shape[:2], device=call.q.device)
    return forward(call, lse), lse


def forward_latent(call: LatentCall) -> torch.Tensor:
    """Run `AttentionBackend.forward_latent`, or `forward_picked` if there are picks.
    Mutates: cache"""
    spec, layout, extent = call.spec, call.prepared.layout, call.prepared.extent
    write_latents(call.latent, call.cache, layout.slots)
    return attend_latents(
        _packed(call.q, spec.size),
        call.cache,
        layout.block_table,
        layout.query_start,
        layout.seq_lens,
        spec.scale,
        spec.latent_size,
        picks=call.picks,
        sinks=call.sinks,
        has_decodes=extent.has_decodes,
        has_prefills=extent.max_query_tokens > 1,
    )


def pick(call: IndexCall) -> torch.Tensor:
    """Run `AttentionBackend.pick`."""
    spec, layout = call.spec, call.prepared.layout
    return index_picks(
        _packed(call.q, spec.head_size),
        call.weights,
        call.keys,
        layout.block_table,
        layout.query_start,
        layout.seq_lens,
        spec.num_picked,
        max_tokens=layout.max_seq_tokens,
    )


def _packed(q: torch.Tensor, size: int) -> torch.Tensor:
    """Return q with heads at a stride of `size`; unchanged if only the tokens are strided."""
    return q if q.stride()[1:] == (size, 1) else q.contiguous()


def parts_of(
    stored: torch.Tensor, size: int
) -> tuple[torch.Tensor, torch.Tensor | None, tuple[int, int]]:
    """Return the numbers of a cache and, of integers, their scales, which end each block, and bits.

    So numbers begin at multiples of 16 bytes. Shapes: stored [2, N, P, K, D], or with scales
    `integer_caches.stored_size` instead of D -> [2, N, P, K, D], [2, N, P, K]
    """
    _, _, block_tokens, heads, width = stored.shape
    if width == size:
        return stored, None, (8, 8)
    bits = bits_of(width, size)
    if bits != (8, 8):
        return *packed_parts_of(
            stored.movedim(1, 0).flatten(1), bits, block_tokens, heads, size
        ), bits
    count = block_tokens * heads
    blocks = stored.flatten(2)
    numbers = blocks[..., : count * size].unflatten(-1, (block_tokens, heads, size))
    scales = blocks[..., count * size :].view(torch.float32).unflatten(-1, (block_tokens, heads))
    return numbers, scales, bits


@cache
def _rules(spec: AttentionSpec) -> LayerRules:
    return LayerRules(
        scale=spec.scale,
        window=spec.window_tokens,
        chunk=spec.chunk_tokens,
        soft_cap=spec.soft_cap,
        is_causal=spec.is_causal,
        k_scale=spec.k_scale,
        v_scale=spec.v_scale,
    )


def _whole(x: torch.Tensor) -> torch.Tensor:
    """Return x with the numbers of a head side by side."""
    return x if x.stride(-1) == 1 else x.contiguous()


@cache
def _check_e4m3(device: torch.device) -> None:
    """Raises: ConfigError if a GPU is too old for a cache of float8_e4m3fn."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) >= E4M3_CAPABILITY:
        return
    raise ConfigError(
        f"{torch.cuda.get_device_name(device)} does not support float8_e4m3fn.",
        where="--kv-cache-dtype",
        fix="use fp8_e5m2, int8 or auto.",
    )

"""The native kernel's cache layout in memory (layout.h), as torch sees it.

`pack` and `unpack` convert it to and from plain [2, N, P, K, D]; a running engine needs neither.
"""

from __future__ import annotations

import torch

from dovetail_kernels.integer_caches import BITS, CELL_TOKENS, SCALE_BYTES, bits_of

FORMATS = (
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.int8,
)
"""Number types of the cache, in the order of KvFormat."""
PAIRED = (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.int8)
INTEGERS = {BITS["int8"]: 5, BITS["k8v4"]: 6, BITS["int4"]: 7}
"""Bits of keys and values -> KvFormat of a cache whose type in torch is int8."""


def format_of(dtype: torch.dtype, stored_size: int, head_size: int) -> int:
    """Return the KvFormat of a cache, by what a key of `head_size` numbers takes."""
    if dtype is torch.int8:
        return INTEGERS[bits_of(stored_size, head_size)]
    return FORMATS.index(dtype)


def cache_shape(
    num_blocks: int, block_tokens: int, num_kv_heads: int, stored_size: int
) -> tuple[int, ...]:
    """Return the shape of one layer's cache: of it only the size and the first axis mean anything.

    `stored_size` counts the elements of one key: the head size, and for int8 its scale's bytes.
    """
    return (num_blocks, num_kv_heads, 2, block_tokens, stored_size)


def pack(cache: torch.Tensor, scales: torch.Tensor | None = None) -> torch.Tensor:
    """Return a plain cache as cells. Shapes: [2, N, P, K, D], scales [2, N, P, K] -> cache_shape"""
    _, num_blocks, block_tokens, heads, size = cache.shape
    raw = _raw(cache).view(2, num_blocks, -1, CELL_TOKENS, heads, size).permute(0, 1, 4, 2, 3, 5)
    keys, values = raw[0].transpose(-1, -2), raw[1].unflatten(-1, (-1, CELL_TOKENS)).transpose(3, 4)
    if cache.dtype in PAIRED:
        keys = keys.unflatten(3, (-1, 2)).transpose(-1, -2)
        values = values.unflatten(4, (-1, 2)).transpose(-1, -2)
    parts = [part.reshape(num_blocks, heads, raw.shape[3], -1) for part in (keys, values)]
    if scales is not None:
        beside = scales.float().view(2, num_blocks, -1, CELL_TOKENS, heads).permute(1, 4, 2, 0, 3)
        parts.append(beside.flatten(-2).contiguous().view(torch.int8))
    stored = size if scales is None else size + SCALE_BYTES
    shape = cache_shape(num_blocks, block_tokens, heads, stored)
    return torch.cat(parts, dim=-1).contiguous().view(cache.dtype).view(shape)


def unpack(cache: torch.Tensor, head_size: int) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the plain cache [2, N, P, K, D] and, of int8, its scales [2, N, P, K]."""
    num_blocks, heads, _, block_tokens, stored = cache.shape
    count = CELL_TOKENS * head_size
    cells = _raw(cache).reshape(num_blocks, heads, block_tokens // CELL_TOKENS, -1)
    keys, values = cells[..., :count], cells[..., count : 2 * count]
    if cache.dtype in PAIRED:
        keys = keys.unflatten(-1, (-1, CELL_TOKENS, 2)).transpose(-1, -2).flatten(-3)
        values = values.unflatten(-1, (-1, CELL_TOKENS, 2)).transpose(-1, -2).flatten(-3)
    keys = keys.unflatten(-1, (head_size, CELL_TOKENS)).transpose(-1, -2)
    values = values.unflatten(-1, (-1, CELL_TOKENS, CELL_TOKENS)).transpose(3, 4).flatten(-2)
    plain = torch.stack([keys, values]).permute(0, 1, 3, 4, 2, 5).flatten(2, 3)
    scales = None
    if stored != head_size:
        beside = cells[..., 2 * count :].contiguous().view(torch.float32)
        scales = beside.unflatten(-1, (2, CELL_TOKENS)).permute(3, 0, 2, 4, 1).flatten(2, 3)
    return plain.contiguous().view(cache.dtype), scales


def _raw(cache: torch.Tensor) -> torch.Tensor:
    """Return the bytes in a type that torch can move about."""
    is_float8 = cache.dtype in (torch.float8_e4m3fn, torch.float8_e5m2)
    return cache.view(torch.int8) if is_float8 else cache

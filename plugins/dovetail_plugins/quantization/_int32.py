"""Small integers packed into int32 words, as AWQ and GPTQ checkpoints store them."""

from __future__ import annotations

import torch

BLOCK_VALUES = 1 << 22


def unpack(
    words: torch.Tensor, bits: int, axis: int, order: list[int] | None = None
) -> torch.Tensor:
    """Return the unsigned values of int32 words, lowest bits first, spread along an axis.

    `order` is the position in a word of value i, for words of 8 values. Widths that do not divide
    32 run over the words' borders. Shapes: words [..., n, ...] -> [..., n * 32 / bits, ...] uint8
    """
    words = words.movedim(axis, -1).contiguous()
    if 32 % bits:
        return _running(words, bits).movedim(-1, axis)
    count = 32 // bits
    places = torch.tensor(order or range(count), dtype=torch.int32) * bits
    shape = (*words.shape[:-1], words.shape[-1] * count)
    flat = words.reshape(-1)
    out = torch.empty(flat.numel() * count, dtype=torch.uint8)
    step = max(1, BLOCK_VALUES // count)
    for start in range(0, flat.numel(), step):
        part = flat[start : start + step].unsqueeze(1) >> places
        values = (part & ((1 << bits) - 1)).to(torch.uint8)
        out[start * count : (start + len(part)) * count] = values.reshape(-1)
    return out.view(shape).movedim(-1, axis)


def _running(words: torch.Tensor, bits: int) -> torch.Tensor:
    """Return values that follow each other without regard to words (3 bits: 32 in 3 words)."""
    count = words.shape[-1] * 32 // bits
    places = torch.arange(count) * bits
    first, shift = places // 32, places % 32
    wide = words.long() & 0xFFFFFFFF
    low = wide[..., first] >> shift
    following = torch.clamp(first + 1, max=words.shape[-1] - 1)
    high = wide[..., following] << (32 - shift)
    return ((low | high) & ((1 << bits) - 1)).to(torch.uint8)

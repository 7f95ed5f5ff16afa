"""token_mask in Triton: one program a stretch of a row.

Only logits that are forbidden are touched. Floor: the masks, 1 bit a token, and the forbidden
logits read and written once, at the device's bandwidth: with few tokens allowed 2 V elements a row.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

STRETCH = 4096
"""Tokens that one program looks at."""


@triton.jit
def _kernel(logits, stride, masks, words, indices, size, STRETCH: tl.constexpr):
    which = tl.program_id(0).to(tl.int64)
    token = tl.program_id(1) * STRETCH + tl.arange(0, STRETCH)
    inside = token < size
    word = tl.load(masks + which * words + token // 32, mask=inside, other=-1)
    is_forbidden = inside & (((word >> (token % 32)) & 1) == 0)
    at = logits + tl.load(indices + which) * stride + token
    value = tl.load(at, mask=is_forbidden, other=0.0).to(tl.float32)
    replaced = tl.where(value != value, value, float("-inf"))
    tl.store(at, replaced.to(logits.dtype.element_ty), mask=is_forbidden)


def run(logits: torch.Tensor, masks: torch.Tensor, indices: torch.Tensor) -> None:
    """Forbid tokens (see the op). Rows of logits may be strided; the others are contiguous.

    Shapes: logits [S, V], masks [A, W] int32, indices [A] int64
    Mutates: logits
    """
    count, words = masks.shape
    size = logits.shape[1]
    stretch = min(STRETCH, triton.next_power_of_2(size))
    if count:
        _kernel[(count, triton.cdiv(size, stretch))](
            logits, logits.stride(0), masks, words, indices, size, STRETCH=stretch, num_warps=4
        )

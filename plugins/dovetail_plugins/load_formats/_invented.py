"""Random tensors that depend only on a seed and a name."""

from __future__ import annotations

import hashlib
import math

import torch

from dovetail.layers.dtypes import dtype_of

SPREAD = 0.02
BLOCK_VALUES = 2**20 - 3
"""Large tensors repeat a random block; its odd length keeps rows from being equal."""


def invent(name: str, shape: tuple[int, ...], dtype: str, seed: int) -> torch.Tensor:
    """Return uniform values of standard deviation SPREAD around 0, or around 1 for norms. Long
    integers are numbers of rows or experts: 0, which all have."""
    kind = dtype_of(dtype)
    if kind == torch.int64:
        return torch.zeros(shape, dtype=kind)
    digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=7).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest, "little"))
    count = math.prod(shape)
    block = torch.empty(min(count, BLOCK_VALUES))
    bound = SPREAD * math.sqrt(3)
    block.uniform_(-bound, bound, generator=generator)
    if not kind.is_floating_point:
        block = (block / bound * 64).round()
    elif len(shape) == 1 and name.endswith("weight"):
        block += 1.0
    block = block.abs().to(kind) if kind == torch.uint8 else block.to(kind)
    return block.repeat(-(-count // max(len(block), 1)))[:count].view(shape)

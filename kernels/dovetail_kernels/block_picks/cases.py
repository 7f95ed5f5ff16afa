"""Cases of block_picks. Queries and keys are small integers: scores are exact whatever their order,
many are equal, and every implementation must pick the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from dovetail_kernels.index_picks.cases import MIXED, Rows, laid_out
from dovetail_kernels.op import Arguments, Case
from dovetail_kernels.random import normal


@dataclass(frozen=True, slots=True, kw_only=True)
class _Setup:
    """The parts of a case: H heads of D numbers; of blocks of B tokens K are picked, L near ones
    among them; cache blocks of P tokens."""

    rows: Rows
    heads: int = 4
    size: int = 32
    block_size: int = 8
    picked: int = 3
    local: int = 1
    cache_tokens: int = 4
    kv_dtype: torch.dtype = torch.float32


REAL = _Setup(
    rows=((1, 5000), (3, 2049)), size=128, block_size=128, picked=16, cache_tokens=16,
    kv_dtype=torch.bfloat16,
)  # fmt: skip


def cases() -> list[Case]:
    """Return each kind of row, few and many blocks, cache types, a real layer's."""
    mixed = _Setup(rows=MIXED)
    sizes = [
        replace(mixed, heads=heads, size=size, picked=picked, local=local)
        for heads, size, picked, local in ((1, 8, 1, 1), (3, 20, 100, 2), (5, 6, 4, 3))
    ]
    blocks = [replace(mixed, block_size=size, cache_tokens=16) for size in (4, 16, 64)]
    kinds = [replace(mixed, kv_dtype=kv) for kv in (torch.bfloat16, torch.float16)]
    return [_case(setup) for setup in (mixed, *sizes, *blocks, *kinds, REAL)]


def small_cases() -> list[Case]:
    """Return few and small cases."""
    return [_case(_Setup(rows=MIXED)), _case(_Setup(rows=MIXED, heads=3, picked=5, local=2))]


def perf_cases() -> list[Case]:
    """Return decodes over long contexts with the heads of MiniMax M3, and a prompt."""
    batches: tuple[Rows, ...] = (((1, 8192),), ((1, 32768),), ((1, 8192),) * 8, ((64, 8192),))
    return [_case(replace(REAL, rows=rows)) for rows in batches]


def _case(setup: _Setup) -> Case:
    pairs = sum(count * (total - (count - 1) / 2) for count, total in setup.rows)
    tokens = sum(count for count, _ in setup.rows)
    seen = sum(total for count, total in setup.rows if count)
    kv = str(setup.kv_dtype).removeprefix("torch.")
    rows = f"{tokens}of{max(total for _, total in setup.rows)}"
    return Case(
        name=f"{rows}_H{setup.heads}_D{setup.size}_B{setup.block_size}_K{setup.picked}"
        f"_L{setup.local}_P{setup.cache_tokens}_{kv}",
        dtype=torch.float32,
        build=_builder(setup),
        moved_bytes=seen * setup.size * setup.kv_dtype.itemsize
        + tokens * setup.heads * (setup.size + setup.picked) * 4,
        flops=int(2 * pairs * setup.heads * setup.size),
        rtol=0.0,
        atol=0.0,
    )


def _builder(setup: _Setup) -> Callable[[torch.device], Arguments]:
    def build(device: torch.device) -> Arguments:
        size = setup.cache_tokens
        num_blocks, places = laid_out(setup.rows, size, device)
        shape = (num_blocks, size, setup.size)
        tokens = sum(count for count, _ in setup.rows)
        q = normal((tokens, setup.heads, setup.size), torch.float32, device, seed=3)
        return {
            "q": q.round(),
            "cache": normal(shape, torch.float32, device, seed=2).round().to(setup.kv_dtype),
            **places,
            "block_size": setup.block_size,
            "num_picked": setup.picked,
            "num_local": setup.local,
        }

    return build

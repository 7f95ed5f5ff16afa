"""Cases of index_picks. Queries and keys are small integers, and weights eighths: scores are exact
whatever their order, many are equal, and every implementation must pick the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from dovetail_kernels.op import Arguments, Case
from dovetail_kernels.random import normal, permutation

Rows = tuple[tuple[int, int], ...]
"""(queries, tokens in the cache) of each row."""

MIXED: Rows = ((1, 33), (7, 7), (0, 0), (5, 60), (9, 12))
KV_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Setup:
    """The parts of a case: H heads of D numbers, K tokens that are picked, blocks of P tokens."""

    rows: Rows
    heads: int = 8
    size: int = 32
    picked: int = 8
    block_tokens: int = 16
    gap: int = 0
    dtype: torch.dtype = torch.float32
    kv_dtype: torch.dtype = torch.float32


REAL = _Setup(rows=((1, 5000), (3, 2049)), heads=64, size=128, picked=2048, kv_dtype=torch.bfloat16)


def cases() -> list[Case]:
    """Return each kind of row, sizes that fill no register, cache types, a real layer's."""
    mixed = _Setup(rows=MIXED)
    sizes = [
        replace(mixed, heads=heads, size=size, picked=picked)
        for heads, size, picked in ((1, 8, 3), (2, 16, 1), (5, 20, 100), (70, 48, 20), (130, 6, 11))
    ]
    blocks = [replace(mixed, block_tokens=tokens, gap=gap) for tokens, gap in ((4, 0), (64, 24))]
    kinds = [replace(mixed, kv_dtype=kv) for kv in KV_DTYPES[1:]]
    narrow = [replace(mixed, dtype=kv, kv_dtype=kv) for kv in KV_DTYPES[1:]]
    return [_case(setup) for setup in (mixed, *sizes, *blocks, *kinds, *narrow, REAL)]


def small_cases() -> list[Case]:
    """Return few and small cases."""
    mixed = _Setup(rows=MIXED)
    odd = replace(mixed, heads=3, size=20, picked=5, block_tokens=4, gap=8)
    return [_case(setup) for setup in (mixed, odd, replace(mixed, kv_dtype=torch.bfloat16))]


def perf_cases() -> list[Case]:
    """Return decodes over long contexts with the heads of DeepSeek V3.2 and GLM-5, and a prompt."""
    batches: tuple[Rows, ...] = (((1, 8192),), ((1, 32768),), ((1, 8192),) * 8, ((64, 8192),))
    return [_case(replace(REAL, rows=rows, heads=heads)) for rows in batches for heads in (64, 32)]


def _case(setup: _Setup) -> Case:
    pairs = sum(count * (total - (count - 1) / 2) for count, total in setup.rows)
    tokens = sum(count for count, _ in setup.rows)
    seen = sum(total for count, total in setup.rows if count)
    kv = str(setup.kv_dtype).removeprefix("torch.")
    rows = f"{tokens}of{max(total for _, total in setup.rows)}"
    return Case(
        name=f"{rows}_H{setup.heads}_D{setup.size}_K{setup.picked}_P{setup.block_tokens}"
        f"{'_apart' if setup.gap else ''}_{kv}",
        dtype=setup.dtype,
        build=_builder(setup),
        moved_bytes=seen * setup.size * setup.kv_dtype.itemsize
        + tokens * (setup.heads * (setup.size + 1) * 4 + setup.picked * 4),
        flops=int(2 * pairs * setup.heads * setup.size),
        rtol=0.0,
        atol=0.0,
    )


def laid_out(rows: Rows, block_tokens: int, device: torch.device) -> tuple[int, Arguments]:
    """Return the number of blocks in the cache of some rows, and the arguments that say where their
    tokens are: in blocks in no order."""
    needed = [-(-total // block_tokens) for _, total in rows]
    order = permutation(sum(needed), device, seed=1) + 1
    table = torch.zeros(len(needed), max(needed), dtype=torch.int32, device=device)
    for row, blocks in enumerate(order.split(needed)):
        table[row, : len(blocks)] = blocks.int()
    counts = torch.tensor([0, *(count for count, _ in rows)])
    lengths = [total for _, total in rows]
    return sum(needed) + 1, {
        "block_table": table,
        "query_start": counts.cumsum(0).to(device, torch.int32),
        "seq_lens": torch.tensor(lengths, dtype=torch.int32, device=device),
    }


def _builder(setup: _Setup) -> Callable[[torch.device], Arguments]:
    def build(device: torch.device) -> Arguments:
        size = setup.block_tokens
        num_blocks, places = laid_out(setup.rows, size, device)
        shape = (num_blocks, size * setup.size + setup.gap)
        memory = normal(shape, torch.float32, device, seed=2).round().to(setup.kv_dtype)
        tokens = sum(count for count, _ in setup.rows)
        q = normal((tokens, setup.heads, setup.size), torch.float32, device, seed=3)
        weights = normal((tokens, setup.heads), torch.float32, device, seed=4)
        return {
            "q": q.round().to(setup.dtype),
            "weights": (weights * 8).round() / 8,
            "cache": memory[:, : size * setup.size].unflatten(1, (size, setup.size)),
            **places,
            "num_picked": setup.picked,
        }

    return build

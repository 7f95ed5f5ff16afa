"""Cases of paged_attention: decodes, prefills, chunks, windows, soft caps, sinks, no mask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from dovetail_kernels.op import Arguments, Case
from dovetail_kernels.random import normal, permutation, tolerance

BLOCK_TOKENS = 16
ROWS: dict[str, tuple[tuple[int, int], ...]] = {
    "decode": ((1, 1), (1, 17), (1, 64), (1, 100)),
    "prefill": ((33, 33), (1, 1), (16, 16)),
    "mixed": ((1, 50), (20, 60), (5, 5), (1, 16), (40, 41)),
}
"""Per row (tokens queried, tokens cached with them)."""
RULES: dict[str, dict[str, Any]] = {
    "plain": {},
    "window": {"window": 9},
    "soft_cap": {"soft_cap": 5.0},
    "not_causal": {"is_causal": False},
    "sinks": {"sinks": True},
    "all": {"window": 9, "soft_cap": 5.0, "sinks": True},
}


def cases() -> list[Case]:
    """Return every shape of batch under every rule, and each dtype plainly."""
    wide = [
        _case(rows, rule, heads, torch.float32)
        for rows in ROWS
        for rule in RULES
        for heads in ((4, 2), (4, 4))
    ]
    narrow = [_case("mixed", "plain", (4, 1), d) for d in (torch.bfloat16, torch.float16)]
    return wide + narrow


def _case(rows: str, rule: str, heads: tuple[int, int], dtype: torch.dtype) -> Case:
    size = 32
    shape = ROWS[rows]
    keys, queries = sum(n for _, n in shape), sum(n for n, _ in shape)
    pairs = sum(n * length for n, length in shape)
    return Case(
        name=f"{rows}_{rule}_H{heads[0]}_K{heads[1]}",
        dtype=dtype,
        build=_builder(rows, rule, heads, size, dtype),
        moved_bytes=2 * (keys * heads[1] + queries * heads[0]) * size * dtype.itemsize,
        flops=4 * pairs * heads[0] * size,
        rtol=tolerance(dtype),
        atol=tolerance(dtype),
    )


def _builder(
    rows: str, rule: str, heads: tuple[int, int], size: int, dtype: torch.dtype
) -> Callable[[torch.device], Arguments]:
    def build(device: torch.device) -> Arguments:
        shape = ROWS[rows]
        counts = torch.tensor([n for n, _ in shape])
        lens = torch.tensor([length for _, length in shape], dtype=torch.int32)
        table, num_blocks = _tables(lens.tolist(), device)
        cache = normal((2, num_blocks, BLOCK_TOKENS, heads[1], size), dtype, device, seed=1)
        rules = dict(RULES[rule])
        if rules.get("sinks"):
            rules["sinks"] = normal((heads[0],), torch.float32, device, seed=3)
        starts = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
        return {
            "q": normal((int(counts.sum()), heads[0], size), dtype, device, seed=2),
            "cache": cache,
            "block_table": table,
            "query_start": starts.int().to(device),
            "seq_lens": lens.to(device),
            "scale": size**-0.5,
            **rules,
        }

    return build


def _tables(lens: list[int], device: torch.device) -> tuple[torch.Tensor, int]:
    """Return rows of scattered block ids, 0 where unused, and how many blocks there are."""
    needed = [-(-length // BLOCK_TOKENS) for length in lens]
    num_blocks = sum(needed) + 3
    free = (permutation(num_blocks - 1, torch.device("cpu"), seed=4) + 1).tolist()
    table = torch.zeros(len(lens), max(needed), dtype=torch.int32)
    for row, count in enumerate(needed):
        table[row, :count] = torch.tensor([free.pop() for _ in range(count)])
    return table.to(device), num_blocks

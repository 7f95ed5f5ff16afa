"""Cases of latent_attention."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from dovetail_kernels.op import Arguments, Case
from dovetail_kernels.random import normal, permutation, tolerance

Rows = tuple[tuple[int, int], ...]
"""(queries, tokens in the cache) of each row."""

ROWS: dict[str, Rows] = {
    "decode": ((1, 1), (1, 40), (1, 17)),
    "mixed": ((1, 33), (7, 7), (0, 0), (5, 60)),
    "long": ((1, 700), (3, 513)),
}
KV_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
ROUNDED_TOLERANCE = 8e-3
"""For queries and weights that may be rounded to bfloat16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Setup:
    """The parts of a case: H heads over latents of L + R numbers in blocks of P tokens."""

    rows: Rows
    heads: int = 4
    size: int = 32
    turned: int = 8
    block_tokens: int = 16
    gap: int = 0
    dtype: torch.dtype = torch.float32
    kv_dtype: torch.dtype = torch.float32
    may_round: bool = False
    picked: int = 0
    has_sinks: bool = False


REAL = _Setup(rows=((1, 300),), heads=16, size=512, turned=64, kv_dtype=torch.bfloat16)


def cases() -> list[Case]:
    """Return each shape of batch, sizes that fill no register, cache types, a real layer's."""
    plain = [_case(name, _Setup(rows=rows)) for name, rows in ROWS.items()]
    sizes = [
        _case("mixed", _Setup(rows=ROWS["mixed"], heads=heads, size=size, turned=turned))
        for heads, size, turned in ((1, 16, 8), (3, 10, 6), (5, 96, 16), (70, 64, 64), (130, 16, 2))
    ]
    kinds = [_case("mixed", _Setup(rows=ROWS["mixed"], kv_dtype=kv)) for kv in KV_DTYPES]
    blocks = [
        _case("mixed", _Setup(rows=ROWS["mixed"], block_tokens=tokens, gap=gap))
        for tokens, gap in ((4, 0), (64, 0), (16, 40))
    ]
    real = [_case("real", REAL), _case("real", replace(REAL, rows=((40, 90),), heads=128))]
    narrow = [
        _case("narrow", _Setup(rows=ROWS["mixed"], dtype=dtype, kv_dtype=dtype))
        for dtype in (torch.bfloat16, torch.float16)
    ]
    return [
        *plain, *sizes, *kinds[1:], *blocks, *real, *narrow, *_rounded_cases(), *_picked_cases(),
        *_sink_cases(),
    ]  # fmt: skip


def _sink_cases() -> list[Case]:
    """Return cases with sinks: of rows in splits, of picks, of a rounded cache."""
    plain = _Setup(rows=ROWS["mixed"], heads=5, has_sinks=True)
    rounded = replace(plain, kv_dtype=torch.bfloat16, may_round=True)
    long = _case("sinks_long", replace(plain, rows=ROWS["long"]))
    return [long, *(_case("sinks", setup) for setup in (plain, replace(plain, picked=9), rounded))]


def _rounded_cases() -> list[Case]:
    """Return cases of a bfloat16 cache whose queries and weights may be rounded to its type."""
    pairs = _Setup(rows=ROWS["mixed"], kv_dtype=torch.bfloat16, may_round=True)
    shapes = [
        replace(pairs, rows=ROWS["long"], heads=heads, size=size, turned=turned)
        for heads, size, turned in ((3, 10, 6), (5, 96, 16), (16, 64, 32), (70, 128, 64))
    ]
    real = replace(REAL, may_round=True)
    wide = replace(real, rows=((40, 90), (1, 600)), heads=128)
    setups = [pairs, replace(pairs, block_tokens=4, gap=40), *shapes, real, wide]
    return [_case("rounded", setup) for setup in setups]


def _picked_cases() -> list[Case]:
    """Return cases in which queries attend only to some positions, or to all that they see."""
    few = _Setup(rows=ROWS["mixed"], picked=9)
    setups = [
        few,
        replace(few, picked=1, heads=70),
        replace(few, picked=100, block_tokens=4, gap=40),
        replace(few, kv_dtype=torch.bfloat16, may_round=True),
        replace(REAL, rows=((2, 700), (1, 600)), heads=128, picked=290, may_round=True),
    ]
    return [_case("picked", setup) for setup in setups]


def small_cases() -> list[Case]:
    """Return few and small cases that go once through each kind of row and cache."""
    first = [_case(name, _Setup(rows=ROWS[name])) for name in ("decode", "mixed")]
    odd = _Setup(rows=((1, 20), (4, 9)), heads=3, size=24, turned=6, block_tokens=4, gap=12)
    kinds = [_case("kind", _Setup(rows=((1, 21), (3, 7)), kv_dtype=kv)) for kv in KV_DTYPES[1:]]
    real = replace(REAL, rows=((1, 70),), dtype=torch.bfloat16)
    picked = [
        _case("picked", _Setup(rows=rows, picked=count, block_tokens=4))
        for rows, count in ((ROWS["mixed"], 6), (((1, 300), (1, 4)), 290))
    ]
    long = _Setup(rows=((1, 300), (2, 9)), heads=3, block_tokens=4, has_sinks=True)
    sinks = [_case("sinks", setup) for setup in (long, replace(long, picked=6))]
    return [_case("real", real), *first, _case("odd", odd), *kinds, *picked, *sinks]


def perf_cases() -> list[Case]:
    """Return decodes of one and eight rows over a long context, and a prompt after a prefix."""
    batches: dict[str, Rows] = {
        "decode1": ((1, 4096),),
        "decode8": ((1, 4096),) * 8,
        "prefill": ((64, 1024),),
    }
    decodes = [
        _case(f"decode_of_{total}", replace(REAL, rows=((1, total),), heads=128, picked=picked))
        for total in (8192, 32768)
        for picked in (0, 2048)
    ]
    kinds = [(16, torch.float32, False)]
    kinds += [(heads, torch.bfloat16, rounds) for heads in (16, 128) for rounds in (False, True)]
    return decodes + [
        _case(
            f"{name}_rounded" if rounds else name,
            replace(REAL, rows=rows, heads=heads, kv_dtype=kv, may_round=rounds),
        )
        for name, rows in batches.items()
        for heads, kv, rounds in kinds
    ]


def _case(name: str, setup: _Setup) -> Case:
    max_seen = setup.picked or max(total for _, total in setup.rows)
    pairs = sum(min(total - i, max_seen) for count, total in setup.rows for i in range(count))
    tokens = sum(count for count, _ in setup.rows)
    seen = sum(min(total, count * max_seen) for count, total in setup.rows if count)
    width = setup.size + setup.turned
    kv = str(setup.kv_dtype).removeprefix("torch.")
    allowed = ROUNDED_TOLERANCE if setup.may_round else tolerance(setup.dtype)
    return Case(
        name=f"{name}_H{setup.heads}_L{setup.size}_R{setup.turned}_P{setup.block_tokens}"
        f"{'_apart' if setup.gap else ''}{f'_K{setup.picked}' if setup.picked else ''}_{kv}",
        dtype=setup.dtype,
        build=_builder(setup),
        moved_bytes=seen * width * setup.kv_dtype.itemsize
        + tokens * setup.heads * (width + setup.size) * setup.dtype.itemsize,
        flops=int(2 * pairs * setup.heads * (width + setup.size)),
        rtol=allowed,
        atol=allowed,
    )


def _builder(setup: _Setup) -> Callable[[torch.device], Arguments]:
    def build(device: torch.device) -> Arguments:
        width, size = setup.size + setup.turned, setup.block_tokens
        needed = [-(-total // size) for _, total in setup.rows]
        order = permutation(sum(needed), device, seed=1) + 1
        table = torch.zeros(len(needed), max(needed), dtype=torch.int32, device=device)
        for row, blocks in enumerate(order.split(needed)):
            table[row, : len(blocks)] = blocks.int()
        counts = torch.tensor([0, *(count for count, _ in setup.rows)])
        shape = (sum(needed) + 1, size * width + setup.gap)
        memory = normal(shape, setup.kv_dtype, device, seed=2)
        lengths = [total for _, total in setup.rows]
        return {
            "q": normal((int(counts.sum()), setup.heads, width), setup.dtype, device, seed=3),
            "cache": memory[:, : size * width].unflatten(1, (size, width)),
            "block_table": table,
            "query_start": counts.cumsum(0).to(device, torch.int32),
            "seq_lens": torch.tensor(lengths, dtype=torch.int32, device=device),
            "scale": width**-0.5,
            "latent_size": setup.size,
            **({"may_round": True} if setup.may_round else {}),
            **({"picks": _picks(setup).to(device)} if setup.picked else {}),
            **({"sinks": 2 * _sinks(setup, device)} if setup.has_sinks else {}),
        }

    return build


def _sinks(setup: _Setup, device: torch.device) -> torch.Tensor:
    return normal((setup.heads,), torch.float32, device, seed=4)


def _picks(setup: _Setup) -> torch.Tensor:
    """Return random positions for each query, among those that it sees. Shapes: [T, K] int32"""
    own = [total - count + i for count, total in setup.rows for i in range(count)]
    picks = torch.full((len(own), setup.picked), -1, dtype=torch.int32)
    for token, position in enumerate(own):
        order = permutation(position + 1, torch.device("cpu"), seed=token)
        found = order[: setup.picked].sort().values
        picks[token, : len(found)] = found.int()
    return picks

"""Cases of paged_attention: decodes, prefills, chunks, windows, soft caps, sinks, biases, no mask.

Those named decode, prefill and mixed are small and share one head and block size; the others go
over head sizes, block sizes, cache types and contexts that cross the kernels' partitions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from dovetail_kernels.op import Arguments, Case
from dovetail_kernels.random import normal, permutation, tolerance

Rows = tuple[tuple[int, int], ...]
"""Per row (tokens queried, tokens cached with them)."""

ROWS: dict[str, Rows] = {
    "decode": ((1, 1), (1, 17), (1, 64), (1, 100)),
    "prefill": ((33, 33), (1, 1), (16, 16)),
    "mixed": ((1, 50), (20, 60), (5, 5), (1, 16), (40, 41)),
}
LONG: Rows = ((1, 300), (70, 530), (1, 1100), (3, 258))
SPLIT: Rows = ((1, 270), (1, 1100), (9, 300))
"""Rows that `small_cases` cut into several splits and tiles."""
TWO: Rows = ((1, 50), (20, 60))
RULES: dict[str, dict[str, Any]] = {
    "plain": {},
    "window": {"window": 9},
    "chunk": {"chunk": 12},
    "soft_cap": {"soft_cap": 5.0},
    "not_causal": {"is_causal": False},
    "not_causal_sides": {"is_causal": False, "window": 9},
    "sinks": {"sinks": True},
    "bias": {"bias": True},
    "bias_not_causal": {"bias": True, "is_causal": False},
    "alibi": {"alibi_slopes": True},
    "alibi_not_causal": {"alibi_slopes": True, "is_causal": False},
    "all": {"window": 9, "soft_cap": 5.0, "sinks": True},
}
LONG_RULES: dict[str, dict[str, Any]] = {
    "plain": {},
    "window": {"window": 260},
    "chunk": {"chunk": 270},
    "chunk_soft_cap_sinks": {"chunk": 64, "soft_cap": 5.0, "sinks": True},
    "window_soft_cap_sinks": {"window": 257, "soft_cap": 5.0, "sinks": True},
    "not_causal_window": {"is_causal": False, "window": 100},
    "alibi": {"alibi_slopes": True},
    "alibi_window_soft_cap": {"alibi_slopes": True, "window": 260, "soft_cap": 5.0},
}
KV_DTYPES = (
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.int8,
)
FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
SCALES = {"k_scale": 0.01171875, "v_scale": 0.75}
"""Key and value scale of an 8-bit cache: keys fill e4m3's range, as calibrated ones do."""
SCALE_BYTES = 4
INT8_TOLERANCE = 2e-4
"""The kernel multiplies int8 by numbers of 16 bits."""
ROUNDED_TOLERANCE = 8e-3
"""bfloat16 has 8 bits of precision: q and the weights are off by up to 2^-9 of themselves, a score
of size 4 by up to 2^-7 if all its terms agree. 8e-3 was observed, for values up to 4."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Setup:
    """The parts of a case: H and K heads of size D over blocks of P tokens."""

    rows: Rows
    heads: tuple[int, int] = (4, 2)
    head_size: int = 32
    block_tokens: int = 16
    dtype: torch.dtype = torch.float32
    kv_dtype: torch.dtype | None = None
    rules: dict[str, Any] = field(default_factory=dict)

    @property
    def cached_as(self) -> torch.dtype:
        return self.kv_dtype or self.dtype


REAL = _Setup(rows=((1, 270), (20, 60)), heads=(32, 8), head_size=128, dtype=torch.bfloat16)


def cases() -> list[Case]:
    """Return every shape of batch under every rule, each dtype plainly, then the wider ones."""
    small = [
        _case(f"{rows}_{rule}_H{heads[0]}_K{heads[1]}", _Setup(rows=r, heads=heads, rules=options))
        for rows, r in ROWS.items()
        for rule, options in RULES.items()
        for heads in ((4, 2), (4, 4))
    ]
    narrow = [
        _case("mixed_plain_H4_K1", _Setup(rows=ROWS["mixed"], heads=(4, 1), dtype=dtype))
        for dtype in (torch.bfloat16, torch.float16)
    ]
    return small + narrow + _wide_cases()


def small_cases() -> list[Case]:
    """Return few and small cases that go once through each rule, cache type and kind of tile; the
    first have the shape of a real layer."""
    real = [
        _case(f"real_{_name(kv)}", replace(REAL, heads=(8, 2), kv_dtype=kv, rules=_scales_of(kv)))
        for kv in (torch.bfloat16, torch.float8_e4m3fn, torch.int8)
    ]
    rows = {**{name: ROWS[name] for name in ("decode", "mixed")}, "long": SPLIT}
    ruled = [
        _case(f"{name}_{rule}", _Setup(rows=r, rules=options))
        for name, r in rows.items()
        for rule, options in (LONG_RULES if name == "long" else RULES).items()
    ]
    kinds = [
        _case(f"kind_{_name(kv)}", _Setup(rows=TWO, kv_dtype=kv, rules=_scales_of(kv)))
        for kv in KV_DTYPES
    ]
    sizes = [_case(f"D{size}", _Setup(rows=TWO, head_size=size)) for size in (16, 80, 256)]
    groups = [_case(f"G{g}", _Setup(rows=TWO, heads=(g, 1))) for g in (1, 7, 64)]
    blocks = [_case(f"P{tokens}", _Setup(rows=TWO, block_tokens=tokens)) for tokens in (32, 128)]
    narrow = [
        _case("narrow", _Setup(rows=TWO, dtype=dtype, kv_dtype=kv))
        for dtype, kv in ((torch.bfloat16, torch.bfloat16), (torch.float16, torch.int8))
    ]
    return real + ruled + kinds + sizes + groups + blocks + narrow


def _scales_of(kv_dtype: torch.dtype) -> dict[str, Any]:
    return SCALES if kv_dtype in FLOAT8 else {}


def _wide_cases() -> list[Case]:
    """Return cases over sizes, cache types and long contexts, in float32."""
    mixed = ROWS["mixed"]
    sizes = [
        _case(f"size_D{size}_{_name(kv)}", _Setup(rows=mixed, head_size=size, kv_dtype=kv))
        for size in (16, 80, 96, 256)
        for kv in (torch.float32, torch.bfloat16, torch.int8)
    ]
    blocks = [
        _case(f"block_P{tokens}_{_name(kv)}", _Setup(rows=mixed, block_tokens=tokens, kv_dtype=kv))
        for tokens in (32, 128)
        for kv in (torch.float32, torch.int8)
    ]
    groups = [
        _case(f"group_G{g}_{_name(kv)}", _Setup(rows=mixed, heads=(g, 1), kv_dtype=kv))
        for g in (1, 3, 5, 7, 16, 64)
        for kv in (torch.float32, torch.int8)
    ]
    long = [
        _case(f"long_{rule}_{_name(kv)}", _Setup(rows=LONG, kv_dtype=kv, rules=options))
        for rule, options in LONG_RULES.items()
        for kv in KV_DTYPES
    ]
    return sizes + blocks + groups + long + _rounded_cases() + _scaled_cases()


def _scaled_cases() -> list[Case]:
    """Return cases of 8-bit floats under a scale, exact and with queries and weights rounded."""
    return [
        _case(
            f"{word}_{name}_{_name(kv)}",
            _Setup(
                rows=rows, heads=heads, head_size=size, kv_dtype=kv, rules=rules | SCALES | more
            ),
        )
        for name, rows, heads, size, rules in _varied()
        for kv in FLOAT8
        for word, more in (("scaled", {}), ("scaled_rounded", {"may_round": True}))
    ]


def _rounded_cases() -> list[Case]:
    """Return cases of a bfloat16 cache whose queries and weights may be rounded to its type."""
    return [
        _case(
            f"rounded_{name}",
            _Setup(
                rows=rows,
                heads=heads,
                head_size=size,
                kv_dtype=torch.bfloat16,
                rules={**rules, "may_round": True},
            ),
        )
        for name, rows, heads, size, rules in _varied()
    ]


def _varied() -> list[tuple[str, Rows, tuple[int, int], int, dict[str, Any]]]:
    """Return name, rows, heads, head size and rules: every rule, and tiles of all sizes."""
    settings: list[tuple[str, Rows, tuple[int, int], int, dict[str, Any]]] = [
        (f"{rows}_{rule}", ROWS[rows], (4, 2), 32, options)
        for rows in ROWS
        for rule, options in RULES.items()
    ]
    settings += [
        (f"long_{rule}", LONG, (4, 2), 32, options) for rule, options in LONG_RULES.items()
    ]
    settings += [(f"D{size}", ROWS["mixed"], (4, 2), size, {}) for size in (16, 80, 256)]
    settings += [(f"G{g}", ROWS["mixed"], (g, 1), 32, {}) for g in (1, 3, 7, 16, 64)]
    return settings


def perf_cases() -> list[Case]:
    """Return decodes and prefills of a layer of 16 heads over 8 kv heads of 128.

    Those called rounded may round queries and weights to bfloat16. On a GPU, cases of its size.
    """
    if torch.cuda.is_available():
        return gpu_perf_cases()
    decodes = [
        (f"B{rows}_L{length}", ((1, length),) * rows)
        for length, counts in ((160, (8, 32)), (1024, (1, 8)), (4096, (1, 8)))
        for rows in counts
    ]
    prefills: list[tuple[str, Rows]] = [
        ("prefill_512", ((512, 512),)),
        ("prefill_256_of_1024", ((256, 1024),)),
        ("prefill_512_of_4096", ((512, 4096),)),
        ("prefill_4x128", ((128, 128),) * 4),
    ]
    kinds: list[tuple[str, torch.dtype, dict[str, Any]]] = [
        ("float32", torch.float32, {}),
        ("bfloat16", torch.bfloat16, {}),
        ("bfloat16_rounded", torch.bfloat16, {"may_round": True}),
        ("int8", torch.int8, {}),
        ("e4m3", torch.float8_e4m3fn, SCALES),
        ("e4m3_rounded", torch.float8_e4m3fn, {**SCALES, "may_round": True}),
        ("e5m2_rounded", torch.float8_e5m2, {**SCALES, "may_round": True}),
    ]
    return [
        _case(
            f"{name}_{kind}",
            _Setup(rows=rows, heads=(16, 8), head_size=128, kv_dtype=kv, rules=rules),
        )
        for name, rows in decodes + prefills
        for kind, kv, rules in kinds
    ]


def gpu_perf_cases() -> list[Case]:
    """Return decodes and prefills of a layer of 32 heads over 8 kv heads of 128 in bfloat16."""
    rows: list[tuple[str, Rows, tuple[torch.dtype, ...]]] = [
        ("B1_L8192", ((1, 8192),), (torch.bfloat16,)),
        ("B1_L131072", ((1, 131072),), (torch.bfloat16,)),
        ("B64_L1024", ((1, 1024),) * 64, (torch.bfloat16,)),
        ("B64_L8192", ((1, 8192),) * 64, (torch.bfloat16, torch.float8_e4m3fn, torch.int8)),
        ("B256_L1024", ((1, 1024),) * 256, (torch.bfloat16,)),
        ("prefill_1024", ((1024, 1024),), (torch.bfloat16,)),
        ("prefill_8192", ((8192, 8192),), (torch.bfloat16, torch.float8_e4m3fn)),
        ("prefill_512_of_32768", ((512, 32768),), (torch.bfloat16,)),
        ("mixed", ((1, 2048),) * 64 + ((2048, 2048),), (torch.bfloat16,)),
    ]
    return [
        _case(f"{name}_{_name(kv)}", replace(REAL, rows=r, kv_dtype=kv, rules=_scales_of(kv)))
        for name, r, kinds in rows
        for kv in kinds
    ]


def tuning_case(rows: Rows, head_size: int) -> Case:
    """Return a case to time tiles with: a layer of 32 heads over 8 kv heads in bfloat16."""
    return _case("tuning", replace(REAL, rows=rows, head_size=head_size))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _case(name: str, setup: _Setup) -> Case:
    queries = sum(n for n, _ in setup.rows)
    is_int8 = setup.cached_as == torch.int8
    allowed = max(tolerance(setup.dtype), INT8_TOLERANCE if is_int8 else 0.0)
    if setup.rules.get("may_round"):
        allowed = ROUNDED_TOLERANCE
    key_bytes = setup.head_size * setup.cached_as.itemsize + SCALE_BYTES * is_int8
    moved = 2 * queries * setup.heads[0] * setup.head_size * setup.dtype.itemsize
    moved += 2 * sum(length for _, length in setup.rows) * setup.heads[1] * key_bytes
    return Case(
        name=name,
        dtype=setup.dtype,
        build=_builder(setup),
        moved_bytes=moved,
        flops=4 * _num_pairs(setup) * setup.heads[0] * setup.head_size,
        rtol=allowed,
        atol=allowed,
    )


def _num_pairs(setup: _Setup) -> int:
    """Return how many keys the queries see, all together."""
    window, chunk = setup.rules.get("window"), setup.rules.get("chunk")
    pairs = 0
    for n, length in setup.rows:
        for position in range(length - n, length):
            end = position + 1 if setup.rules.get("is_causal", True) else length
            if window:
                end = min(end, position + window)
            first = max(0, position - window + 1) if window else 0
            pairs += end - (position // chunk * chunk if chunk else first)
    return pairs


def _builder(setup: _Setup) -> Callable[[torch.device], Arguments]:
    def build(device: torch.device) -> Arguments:
        counts = torch.tensor([n for n, _ in setup.rows])
        lens = torch.tensor([length for _, length in setup.rows], dtype=torch.int32)
        table, num_blocks = _tables(lens.tolist(), setup.block_tokens, device)
        rules = dict(setup.rules)
        if rules.get("sinks"):
            rules["sinks"] = normal((setup.heads[0],), torch.float32, device, seed=3)
        if rules.get("bias"):
            shape = (setup.heads[0], 2 * max(lens.tolist()) - 1)
            rules["bias"] = normal(shape, torch.float32, device, seed=5)
        if rules.get("alibi_slopes"):
            slopes = [2.0 ** -(1 + i % 8) for i in range(setup.heads[0])]
            rules["alibi_slopes"] = torch.tensor(slopes, device=device)
        starts = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
        q_shape = (int(counts.sum()), setup.heads[0], setup.head_size)
        return {
            "q": normal(q_shape, setup.dtype, device, seed=2),
            **_cache(setup, num_blocks, device),
            "block_table": table,
            "query_start": starts.int().to(device),
            "seq_lens": lens.to(device),
            "scale": setup.head_size**-0.5,
            **rules,
        }

    return build


def _cache(setup: _Setup, num_blocks: int, device: torch.device) -> Arguments:
    """Return the cache, and the scales of an int8 one."""
    shape = (2, num_blocks, setup.block_tokens, setup.heads[1], setup.head_size)
    wide = normal(shape, torch.float32, device, seed=1)
    if "k_scale" in setup.rules:
        wide[0] /= setup.rules["k_scale"]
        wide[1] /= setup.rules["v_scale"]
    if setup.cached_as != torch.int8:
        return {"cache": wide.to(setup.cached_as)}
    scales = wide.abs().amax(-1) / 127
    return {"cache": (wide / scales.unsqueeze(-1)).round().to(torch.int8), "scales": scales}


def _tables(lens: list[int], block_tokens: int, device: torch.device) -> tuple[torch.Tensor, int]:
    """Return rows of scattered block ids, 0 if unused, and the number of blocks."""
    needed = [-(-length // block_tokens) for length in lens]
    num_blocks = sum(needed) + 3
    free = (permutation(num_blocks - 1, torch.device("cpu"), seed=4) + 1).tolist()
    table = torch.zeros(len(lens), max(needed), dtype=torch.int32)
    for row, count in enumerate(needed):
        table[row, :count] = torch.tensor([free.pop() for _ in range(count)])
    return table.to(device), num_blocks

"""The native attention kernel: a row's bits depend on the row alone; unseen slots reach nothing.

What it computes is checked over the op's cases (test_ops); here is how.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from dovetail_kernels import load_op
from dovetail_kernels.check import check_case
from dovetail_kernels.cpu.library import Library, library, missing_reason
from dovetail_kernels.cpu.recipe import BFLOAT16_ISAS
from dovetail_kernels.paged_attention.layout import FORMATS, cache_shape, pack, unpack
from dovetail_kernels.paged_attention.native import Step

pytestmark = pytest.mark.skipif(missing_reason() is not None, reason=str(missing_reason()))

CPU = torch.device("cpu")
OP = load_op("paged_attention")
CASES = importlib.import_module("dovetail_kernels.paged_attention.cases")
HEADS, KV_HEADS, SIZE, BLOCK = 6, 2, 48, 16
RULES: dict[str, dict[str, Any]] = {
    "plain": {},
    "window": {"window": 300},
    "chunk": {"chunk": 270},
    "cap": {"soft_cap": 3.0},
    "alibi": {"alibi_slopes": (0.5, 0.3, 0.1, 0.05, 0.01, 0.001)},
}
NAMES = [str(dtype).removeprefix("torch.") for dtype in FORMATS]
KINDS: dict[str, tuple[torch.dtype, dict[str, Any]]] = {
    **{name: (dtype, {}) for name, dtype in zip(NAMES, FORMATS, strict=True)},
    "bfloat16_rounded": (torch.bfloat16, {"may_round": True}),
    "float8_scaled": (torch.float8_e4m3fn, {"k_scale": 0.0117, "v_scale": 0.07}),
    "float8_rounded": (torch.float8_e4m3fn, {"may_round": True, "k_scale": 0.0117}),
    "float8_wide_rounded": (torch.float8_e5m2, {"may_round": True, "v_scale": 0.07}),
}


PAIRS = [
    pytest.param(kind, rule, marks=() if turn % len(RULES) == place else pytest.mark.any_isa)
    for turn, kind in enumerate(KINDS)
    for place, rule in enumerate(RULES)
]
"""Every kind with every rule; on lower instruction sets every kind with one, and so every rule."""


@pytest.fixture
def threads() -> Iterator[Any]:
    """Return the function that sets the number of threads; puts it back."""
    found = library()
    assert found is not None
    before = found.num_threads()
    yield found.set_threads
    found.set_threads(before)


class World:
    """A cache whose bytes are all ones before they are written: NaN in every float."""

    def __init__(self, dtype: torch.dtype, rows: int = 3, max_tokens: int = 800) -> None:
        self.blocks = math.ceil(max_tokens / BLOCK)
        stored = SIZE + (4 if dtype == torch.int8 else 0)
        shape = cache_shape(rows * self.blocks + 1, BLOCK, KV_HEADS, stored)
        raw = torch.full((math.prod(shape) * dtype.itemsize,), 255, dtype=torch.uint8)
        self.cache = raw.view(dtype).view(shape)
        order = torch.randperm(rows * self.blocks, generator=torch.Generator().manual_seed(1)) + 1
        self.table = order.int().view(rows, self.blocks)
        self.lengths = [0] * rows

    def step(
        self,
        parts: list[tuple[int, torch.Tensor, torch.Tensor, torch.Tensor]],
        bias: torch.Tensor | None = None,
        **rules: Any,
    ) -> list[torch.Tensor]:
        """Return the answers of rows that each bring (row, q, k, v). Mutates: self"""
        counts = [len(q) for _, q, _, _ in parts]
        rows = [row for row, *_ in parts]
        starts = torch.tensor([0, *counts]).cumsum(0).int()
        slots = []
        for row, count in zip(rows, counts, strict=True):
            at = torch.arange(self.lengths[row], self.lengths[row] + count)
            slots.append(self.table[row, at // BLOCK].long() * BLOCK + at % BLOCK)
            self.lengths[row] += count
        step = Step(
            block_table=self.table[rows],
            query_start=starts,
            seq_lens=torch.tensor([self.lengths[row] for row in rows]).int(),
            slots=torch.cat(slots),
            block_tokens=BLOCK,
        )
        step.set_rules(
            num_heads=HEADS, num_kv_heads=KV_HEADS, head_size=SIZE, scale=SIZE**-0.5, **rules
        )
        q, k, v = (torch.cat([part[i] for part in parts]) for i in (1, 2, 3))
        return list(step(q, k, v, self.cache, bias=bias).split(counts))


def tokens(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return q, k and v of some tokens."""
    draw = torch.Generator().manual_seed(seed)
    q, k, v = (
        torch.randn(count, heads, SIZE, generator=draw) for heads in (HEADS, KV_HEADS, KV_HEADS)
    )
    return q, k, v


def cut(all_of: tuple[torch.Tensor, ...], start: int, end: int) -> list[torch.Tensor]:
    return [x[start:end] for x in all_of]


def whole(dtype: torch.dtype, count: int, seed: int, **rules: Any) -> torch.Tensor:
    """Return a row computed alone and at once."""
    return World(dtype).step([(0, *tokens(count, seed))], **rules)[0]


@pytest.mark.sampled(every=2)
@pytest.mark.few_isa
@pytest.mark.any_isa  # test_native_library runs all cases on each
@pytest.mark.parametrize("case", OP.cases(), ids=lambda c: f"{c.name}-{c.dtype}")
def test_equals_the_definition(case: Any) -> None:
    assert check_case(OP, case, "native", CPU) is None


@pytest.mark.parametrize(("kind", "rule"), PAIRS)
def test_chunks_and_neighbours_change_no_bit(kind: str, rule: str) -> None:
    """Chunks, decodes and other rows; contexts beyond two partitions of 256 keys."""
    dtype, rounding = KINDS[kind]
    rules, made, other = RULES[rule] | rounding, tokens(530, 7), tokens(640, 8)
    alone = whole(dtype, 530, 7, **rules)
    world, found, done = World(dtype), [], 0
    for count, others in ((250, 3), (13, 0), (1, 600), (1, 1), (255, 30), (9, 5), (1, 1)):
        parts: list[Any] = [(2, *cut(made, done, done + count))]
        if others:
            parts.insert(0, (1, *cut(other, world.lengths[1], world.lengths[1] + others)))
        found.append(world.step(parts, **rules)[-1])
        done += count
    assert torch.equal(torch.cat(found), alone)


@pytest.mark.parametrize("kind", ["float32", "bfloat16_rounded", "int8"])
@pytest.mark.parametrize("rule", ["all", "window", "bias", "alibi"])
def test_neighbours_change_no_bit_without_a_mask(kind: str, rule: str) -> None:
    """Rows whose tokens see those after them too, alone and among others."""
    dtype, rules = KINDS[kind][0], {**KINDS[kind][1], "is_causal": False}
    if rule == "window":
        rules["window"] = 70
    if rule == "alibi":
        rules |= RULES[rule]
    if rule == "bias":
        rules["bias"] = torch.randn(HEADS, 1279, generator=torch.Generator().manual_seed(2))
    rows = [(1, *tokens(640, 8)), (2, *tokens(530, 7)), (0, *tokens(3, 9))]
    together = World(dtype).step(rows, **rules)
    assert torch.equal(together[1], whole(dtype, 530, 7, **rules))
    assert torch.equal(together[2], whole(dtype, 3, 9, **rules))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float8_e4m3fn, torch.int8], ids=str)
def test_keys_beyond_both_sides_of_a_window_may_be_anything(dtype: torch.dtype) -> None:
    q, k, v = tokens(300, 6)
    rules: dict[str, Any] = {"is_causal": False, "window": 21}
    clean = World(dtype).step([(0, q, k, v)], **rules)[0]
    spoiled = [torch.full_like(x, math.nan) for x in (k, v)]
    for made, given in zip(spoiled, (k, v), strict=True):
        made[180:221] = given[180:221]
    assert torch.equal(World(dtype).step([(0, q, *spoiled)], **rules)[0][200], clean[200])


@pytest.mark.parametrize("kind", ["float32", "bfloat16_rounded", "int8"])
@pytest.mark.parametrize("count", [1, 4, 70])
def test_threads_change_no_bit(kind: str, count: int, threads: Any) -> None:
    """A row whose context is divided among threads, against one thread."""
    (dtype, rules), made, found = KINDS[kind], tokens(700 + count, 3), []
    for number in (1, 2, 3):
        threads(number)
        world = World(dtype)
        world.step([(0, *cut(made, 0, 700))])
        found.append(world.step([(0, *cut(made, 700, 700 + count))], **rules)[0])
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


@pytest.mark.parametrize(("kind", "rule"), PAIRS)
def test_a_later_nan_changes_no_earlier_query(kind: str, rule: str) -> None:
    """A NaN key or value is seen by its own and later queries, by no other."""
    dtype, rounding = KINDS[kind]
    rules = RULES[rule] | rounding
    clean = whole(dtype, 300, 5, **rules)
    for spoiled in (1, 2):
        made = list(tokens(300, 5))
        made[spoiled] = made[spoiled].clone()
        made[spoiled][271] = math.nan
        found = World(dtype).step([(0, *made)], **rules)[0]
        assert torch.equal(found[:271], clean[:271])
        assert bool(found[271:].isnan().any(dim=-1).all())


def test_a_nan_query_shows() -> None:
    q, k, v = tokens(40, 1)
    q[7, 3, 5] = math.nan
    for dtype, rounding in KINDS.values():
        for rules in RULES.values():
            found = World(dtype).step([(0, q, k, v)], **rules, **rounding)[0]
            assert bool(found[7, 3].isnan().all()) and int(found.isnan().sum()) == SIZE


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn], ids=str)
@pytest.mark.parametrize("rule", [{}, {"window": 5}, {"window": 260}], ids=str)
def test_keys_out_of_a_window_may_be_anything(rule: dict[str, int], dtype: torch.dtype) -> None:
    """Pairs of keys of which one is seen: the first of a window, the last of a causal row."""
    q, k, v = tokens(300, 6)
    clean = World(dtype).step([(0, q, k, v)], may_round=True, **rule)[0]
    for last in (290, 291):
        seen = slice(max(0, last + 1 - rule.get("window", 300)), last + 1)
        spoiled = [torch.full_like(x, math.nan) for x in (k, v)]
        for made, given in zip(spoiled, (k, v), strict=True):
            made[seen] = given[seen]
        found = World(dtype).step([(0, q, *spoiled)], may_round=True, **rule)[0]
        assert torch.equal(found[last], clean[last])


@pytest.mark.parametrize("dtype", FORMATS[3:5], ids=NAMES[3:5])
@pytest.mark.parametrize("may_round", [False, True])
def test_every_8_bit_float_means_what_torch_says(dtype: torch.dtype, may_round: bool) -> None:
    """One key, of weight 1: its value comes out, for all 256 codes, infinities and NaN too."""
    codes = torch.arange(256, dtype=torch.uint8).view(dtype)
    cache = torch.zeros(2, 1, 16, 1, 256, dtype=dtype)
    cache.view(torch.uint8)[1, 0, 0, 0] = codes.view(torch.uint8)
    step = Step(
        block_table=torch.zeros(1, 1, dtype=torch.int32),
        query_start=torch.tensor([0, 1], dtype=torch.int32),
        seq_lens=torch.tensor([1], dtype=torch.int32),
        slots=None,
        block_tokens=16,
    )
    step.set_rules(num_heads=1, num_kv_heads=1, head_size=256, scale=1.0, may_round=may_round)
    found = step(torch.ones(1, 1, 256), None, None, pack(cache))[0, 0]
    assert torch.equal(found.nan_to_num(1e9), codes.float().nan_to_num(1e9))
    assert torch.equal(found.isnan(), codes.float().isnan())


def test_rounding_is_done_where_it_pays_and_adds_up_to_one() -> None:
    """Weights that were rounded are divided by their own sum: equal values come out as they are."""
    found = library()
    assert found is not None
    q, k, v = tokens(300, 2)
    exact, rounded = (
        World(torch.bfloat16).step([(0, q, k, v)], may_round=may_round)[0]
        for may_round in (False, True)
    )
    assert torch.equal(exact, rounded) == (found.isa not in BFLOAT16_ISAS)
    same = World(torch.bfloat16).step([(0, q, k, torch.full_like(v, 1.5))], may_round=True)[0]
    torch.testing.assert_close(same, torch.full_like(same, 1.5), rtol=1e-6, atol=0)


@pytest.mark.parametrize("growth", [0.0, 0.02], ids=["level", "rising"])
@pytest.mark.parametrize(("heads", "size"), [((14, 2), 64), ((6, 2), 80)], ids=str)
def test_tiles_are_as_near_to_the_definition_as_pairs(
    heads: tuple[int, int], size: int, growth: float
) -> None:
    """Errors of a row's output, relative to it, by AMX and by pairs of bfloat16. Where scores rise
    from key to key, weights are scaled again and again on the way."""
    found = library()
    if found is None or found.best_isa != "amx" or "amx" not in found.isas():
        pytest.skip("this machine has no AMX")
    count, queries, draw = 1100, 70, torch.Generator().manual_seed(5)
    case = {
        "q": torch.randn(queries, heads[0], size, generator=draw),
        "cache": torch.randn(2, 69, BLOCK, heads[1], size, generator=draw).bfloat16(),
    }
    case["q"][..., 0] = size**0.5
    rising = torch.arange(69 * BLOCK).view(69, BLOCK, 1) * growth
    case["cache"][0, ..., 0] = rising.bfloat16()
    table = torch.arange(69).int().unsqueeze(0)
    where = {
        "block_table": table,
        "query_start": torch.tensor([0, queries]).int(),
        "seq_lens": torch.tensor([count]).int(),
    }
    wide = {name: x.double() for name, x in case.items()}
    exact = OP.reference(**wide, **where, scale=size**-0.5)
    errors = []
    for isa in ("avx512bf16", "amx"):
        step = Step(**where, slots=None, block_tokens=BLOCK, source=Library(found.path, isa))
        step.set_rules(
            num_heads=heads[0],
            num_kv_heads=heads[1],
            head_size=size,
            scale=size**-0.5,
            may_round=True,
        )
        out = step(case["q"], None, None, pack(case["cache"]))
        errors.append((out.double() - exact).norm(dim=-1) / exact.norm(dim=-1))
    by_pairs, by_tiles = errors
    assert not torch.equal(by_pairs, by_tiles)
    assert by_tiles.mean() < 1.03 * by_pairs.mean()
    assert by_tiles.max() < 1.3 * by_pairs.max()


@pytest.mark.parametrize("dtype", FORMATS[:-1], ids=NAMES[:-1])
def test_stored_numbers_are_rounded_like_torch(dtype: torch.dtype) -> None:
    """Nearest even, over all magnitudes, subnormal ones too; 8-bit floats end at their largest."""
    draw = torch.Generator().manual_seed(2)
    wide = torch.randn(300, KV_HEADS, SIZE, generator=draw)
    wide *= 2.0 ** torch.randint(-28, 14, wide.shape, generator=draw)
    if dtype.itemsize == 1:
        wide[0, 0, :4] = torch.tensor([1e6, -1e6, 464.0, -61440.0])
    world = World(dtype)
    world.step([(1, torch.zeros(300, HEADS, SIZE), wide, -wide)])
    plain, _ = unpack(world.cache, SIZE)
    rows = plain.float()[:, world.table[1].long()].flatten(1, 2)[:, :300]
    limit = torch.finfo(dtype).max if dtype.itemsize == 1 else math.inf
    wanted = wide.clamp(-limit, limit).to(dtype).float()
    assert torch.equal(rows[0], wanted) and torch.equal(rows[1], -wanted)


@pytest.mark.parametrize("dtype", FORMATS[3:5], ids=NAMES[3:5])
@pytest.mark.parametrize("scales", [(0.0117, 3.1), (7.0, 1e-4)], ids=str)
def test_8_bit_floats_hold_quotients(dtype: torch.dtype, scales: tuple[float, float]) -> None:
    """Bit for bit what torch makes of x / scale; a product with 1 / scale would not be."""
    _, k, v = tokens(300, 11)
    world = World(dtype)
    queries = torch.zeros(300, HEADS, SIZE)
    world.step([(1, queries, k, v)], k_scale=scales[0], v_scale=scales[1])
    plain, _ = unpack(world.cache, SIZE)
    limit = torch.finfo(dtype).max
    for half, given, scale in zip(plain, (k, v), scales, strict=True):
        found = half.view(torch.uint8)[world.table[1].long()].flatten(0, 1)[:300]
        wanted = (given / torch.tensor(scale)).clamp(-limit, limit).to(dtype)
        assert torch.equal(found, wanted.view(torch.uint8))


def test_int8_keeps_a_scale_per_token_and_head() -> None:
    _, k, v = tokens(20, 4)
    world = World(torch.int8)
    world.step([(0, torch.zeros(20, HEADS, SIZE), k * 50, v)])
    plain, scales = unpack(world.cache, SIZE)
    assert scales is not None
    blocks = world.table[0, :2].long()
    for half, given in enumerate((k * 50, v)):
        stored = plain[half, blocks].flatten(0, 1)[:20].float()
        scale = scales[half, blocks].flatten(0, 1)[:20]
        torch.testing.assert_close(scale, given.abs().amax(-1) / 127)
        assert (stored * scale.unsqueeze(-1) - given).abs().max() <= scale.max() * 0.501


@pytest.mark.parametrize("dtype", FORMATS, ids=NAMES)
def test_pack_and_unpack_are_inverse(dtype: torch.dtype) -> None:
    plain = torch.randn(2, 3, 32, 2, 48, generator=torch.Generator().manual_seed(1)) * 20
    scales = torch.rand(2, 3, 32, 2) if dtype == torch.int8 else None
    packed = pack(plain.to(dtype), scales)
    found, found_scales = unpack(packed, 48)
    assert torch.equal(found.float(), plain.to(dtype).float())
    assert scales is None or torch.equal(found_scales, scales)


def test_tokens_may_lie_apart() -> None:
    """q, k and v as slices of one tensor give what tensors of their own give."""
    q, k, v = tokens(50, 9)
    packed = torch.cat([x.flatten(1) for x in (q, k, v)], dim=1)
    sizes = [heads * SIZE for heads in (HEADS, KV_HEADS, KV_HEADS)]
    apart = [x.unflatten(1, (-1, SIZE)) for x in packed.split(sizes, dim=1)]
    worlds = World(torch.float32), World(torch.float32)
    (one,), (other,) = worlds[0].step([(0, q, k, v)]), worlds[1].step([(0, *apart)])
    assert torch.equal(one, other)


def test_perf_cases_name_their_bytes() -> None:
    case = next(c for c in CASES.perf_cases() if c.name == "B8_L4096_int8")
    assert case.moved_bytes == 2 * 8 * 4096 * 8 * (128 + 4) + 2 * 8 * 16 * 128 * 4
    assert case.flops == 4 * 8 * 4096 * 16 * 128

"""sample in Triton: the same tokens as on a CPU, with penalties, in up to five launches a step.

`scan` and `weigh` divide a row among many programs and leave one number a piece; `search` and
`draw` are one program a row. Sums are of whole numbers and floats are never fused, so a token
depends neither on the pieces nor on the device. No launch depends on a number on the device, and
the host reads nothing back.

Floor: 4 V bytes a row at the device's bandwidth, and 20 operations a token for its weight if a row
is not greedy. Actual cost: two reads of a row (greedy: one), one more for top-k, two more for
top-p. `search` reads it three to seven times more only if more than FOUND tokens are between the
bounds from the blocks' maxima. Nothing is sorted.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from dovetail_kernels.sample.device import SampledTokens, SamplingSettings
from dovetail_kernels.sample.search import search_kernel
from dovetail_kernels.sample.tiles import (
    LEAST,
    SLOT,
    TEMPERATURE,
    UNIFORM,
    field_of,
    is_finite,
    is_sampled,
    row_best,
    values,
    weight,
)

PIECE = 4096
"""Tokens that one program scans or weighs."""
SMALL_BLOCK, LARGE_BLOCK, LARGE_VOCAB = 32, 128, 16384
MAX_BLOCKS = 4096
"""Blocks of a row whose maxima one program can hold."""


@triton.jit
def _scan(
    logits, stride, vocab, wishes, seen, maxima, bests, raw_bests, num_blocks, num_pieces,
    HAS_PENALTIES: tl.constexpr, BLOCKS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row, piece = tl.program_id(0).to(tl.int64), tl.program_id(1)
    block = piece * BLOCKS + tl.arange(0, BLOCKS)
    token = block[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    value = values(logits, stride, row, token, vocab, wishes, seen, HAS_PENALTIES)
    block_best = tl.max(tl.where(value == value, value, float("-inf")), axis=1)
    tl.store(maxima + row * num_blocks + block, block_best, mask=block < num_blocks)
    is_spoilt = tl.max(tl.max((value != value).to(tl.int32), axis=1), axis=0) > 0
    best = tl.where(is_spoilt, float("nan"), tl.max(block_best, axis=0))
    tl.store(bests + row * num_pieces + piece, best)
    if HAS_PENALTIES:
        raw = values(logits, stride, row, token, vocab, wishes, seen, False)
        is_spoilt = tl.max(tl.max((raw != raw).to(tl.int32), axis=1), axis=0) > 0
        known = tl.where(raw == raw, raw, float("-inf"))
        raw_best = tl.max(tl.max(known, axis=1), axis=0)
        raw_best = tl.where(is_spoilt, float("nan"), raw_best)
        tl.store(raw_bests + row * num_pieces + piece, raw_best)


@triton.jit
def _weigh(
    logits, stride, vocab, wishes, seen, bests, bounds, sums, num_pieces,
    HAS_PENALTIES: tl.constexpr, PIECES: tl.constexpr, PIECE: tl.constexpr,
):  # fmt: skip
    row, piece = tl.program_id(0).to(tl.int64), tl.program_id(1)
    best = row_best(bests, row, num_pieces, PIECES)
    factor = field_of(wishes, row, TEMPERATURE).to(tl.float32)
    if is_sampled(best, factor):
        total = tl.zeros([], tl.int64)
        bound = tl.load(bounds + row)
        piece_best = tl.load(bests + row * num_pieces + piece)
        if (piece_best - best) * factor >= bound:
            token = piece * PIECE + tl.arange(0, PIECE)
            value = values(logits, stride, row, token, vocab, wishes, seen, HAS_PENALTIES)
            x = (value - best) * factor
            total = tl.sum(tl.where(x >= bound, weight(x), 0), axis=0)
        tl.store(sums + row * num_pieces + piece, total)


@triton.jit
def _draw(
    logits, stride, vocab, wishes, seen, bests, raw_bests, bounds, sums, tokens, picks, num_pieces,
    HAS_PENALTIES: tl.constexpr, PIECES: tl.constexpr, PIECE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    best = row_best(bests, row, num_pieces, PIECES)
    factor = field_of(wishes, row, TEMPERATURE).to(tl.float32)
    at = tl.arange(0, PIECES)
    drawn = tl.zeros([], tl.int64)
    is_drawn = is_finite(best)
    if is_sampled(best, factor):
        mine = tl.load(sums + row * num_pieces + at, mask=at < num_pieces, other=0)
        total = tl.sum(mine, axis=0)
        target = (total.to(tl.float64) * field_of(wishes, row, UNIFORM)).to(tl.int64)
        target = tl.minimum(target, total - 1)
        piece = tl.sum((tl.cumsum(mine, axis=0) <= target).to(tl.int32), axis=0)
        target -= tl.sum(tl.where(at < piece, mine, 0), axis=0)
        token = piece * PIECE + tl.arange(0, PIECE)
        value = values(logits, stride, row, token, vocab, wishes, seen, HAS_PENALTIES)
        x = (value - best) * factor
        weights = tl.where(x >= tl.load(bounds + row), weight(x), 0)
        before = tl.sum((tl.cumsum(weights, axis=0) <= target).to(tl.int32), axis=0)
        drawn = (piece * PIECE + before).to(tl.int64)
    elif is_drawn:
        own = tl.load(bests + row * num_pieces + at, mask=at < num_pieces, other=float("-inf"))
        piece = tl.min(tl.where((own == best) & (at < num_pieces), at, PIECES), axis=0)
        token = piece * PIECE + tl.arange(0, PIECE)
        value = values(logits, stride, row, token, vocab, wishes, seen, HAS_PENALTIES)
        drawn = tl.min(tl.where(value == best, token, vocab), axis=0).to(tl.int64)
    tl.store(tokens + row, drawn)
    raw_best = row_best(raw_bests, row, num_pieces, PIECES)
    tl.store(picks + 3 * row, drawn)
    tl.store(picks + 3 * row + 1, best.to(tl.int32, bitcast=True).to(tl.int64))
    tl.store(picks + 3 * row + 2, raw_best.to(tl.int32, bitcast=True).to(tl.int64))
    if HAS_PENALTIES:
        slot = field_of(wishes, row, SLOT).to(tl.int64)
        if (slot >= 0) & is_drawn:
            times = tl.load(seen + slot * vocab + drawn)
            tl.store(seen + slot * vocab + drawn, tl.where(times == 0, 2, times + 1))


def draw(logits: torch.Tensor, wanted: SamplingSettings) -> SampledTokens:
    """Draw one token per row (see `device.draw`). Mutates: wanted.seen"""
    step = _Step(logits, wanted)
    step.scan()
    if wanted.is_random:
        if wanted.has_top_p:
            step.weigh()
        if wanted.has_bounds:
            step.search()
        step.weigh()
    return step.draw()


class _Step:
    """The launches of one step, and the intermediate results between them."""

    def __init__(self, logits: torch.Tensor, wanted: SamplingSettings) -> None:
        self._rows, self._vocab = logits.shape
        device = logits.device
        seen = wanted.seen
        self._wanted = wanted
        self._row = (logits, logits.stride(0), self._vocab, wanted.params, seen)
        self._has_penalties = seen is not None
        self._block = block_of(self._vocab)
        self._piece = max(self._block, min(PIECE, triton.next_power_of_2(self._vocab)))
        self._num_blocks = triton.cdiv(self._vocab, self._block)
        self._num_pieces = triton.cdiv(self._vocab, self._piece)
        self._maxima = torch.empty((self._rows, self._num_blocks), device=device)
        self._bests = torch.empty((self._rows, self._num_pieces), device=device)
        self._raw_bests = torch.empty_like(self._bests) if self._has_penalties else self._bests
        self._sums = torch.empty_like(self._bests, dtype=torch.int64)
        # min-p's bound; `search` replaces it by a tighter one. Not read by greedy rows.
        self._bounds = wanted.params[:, LEAST.value].float() if wanted.is_random else self._bests
        self._sizes = {
            "HAS_PENALTIES": self._has_penalties,
            "PIECES": triton.next_power_of_2(self._num_pieces),
        }

    def scan(self) -> None:
        """Find the largest logit of every block and piece."""
        _scan[(self._rows, self._num_pieces)](
            *self._row, self._maxima, self._bests, self._raw_bests, self._num_blocks,
            self._num_pieces, HAS_PENALTIES=self._has_penalties,
            BLOCKS=self._piece // self._block, BLOCK=self._block, num_warps=8,
            enable_fp_fusion=False,
        )  # fmt: skip

    def weigh(self) -> None:
        """Sum the weights of every piece's tokens within the bounds."""
        _weigh[(self._rows, self._num_pieces)](
            *self._row, self._bests, self._bounds, self._sums, self._num_pieces,
            **self._sizes, PIECE=self._piece, num_warps=8, enable_fp_fusion=False,
        )  # fmt: skip

    def search(self) -> None:
        """Tighten the bounds to what top-k and top-p keep."""
        search_kernel(self._row, self._bests, self._maxima, self._sums, self._bounds, self._sizes)

    def draw(self) -> SampledTokens:
        """Draw, and count what was drawn."""
        tokens = torch.empty(self._rows, dtype=torch.int64, device=self._bests.device)
        picks = torch.empty((self._rows, 3), dtype=torch.int64, device=self._bests.device)
        _draw[(self._rows,)](
            *self._row, self._bests, self._raw_bests, self._bounds, self._sums, tokens, picks,
            self._num_pieces, **self._sizes, PIECE=self._piece, num_warps=8,
            enable_fp_fusion=False,
        )  # fmt: skip
        return SampledTokens(tokens=tokens, told=picks)


def block_of(vocab: int) -> int:
    """Return how many tokens of a vocabulary share a maximum."""
    if vocab < LARGE_VOCAB:
        return SMALL_BLOCK
    return max(LARGE_BLOCK, triton.next_power_of_2(triton.cdiv(vocab, MAX_BLOCKS)))


def run(logits: torch.Tensor, wanted: SamplingSettings) -> torch.Tensor:
    """Return one token per row. Shapes: logits [S, V] -> [S]"""
    return draw(logits, wanted).tokens

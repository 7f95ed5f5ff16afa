"""Random matrices of vectors and of trits, for cases and tests."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from dovetail_kernels.gemm.weight import Weight, is_trits


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorKind:
    """The meaning of codes. `books` 0: int8, with signs if points have 8 values; more: sums of
    `books` float16 points."""

    size: int = 8
    code_bits: int = 9
    books: int = 0

    @property
    def label(self) -> str:
        """Return its name in a case."""
        return f"{self.size}x{self.code_bits}{'f' * self.books}"


def make_vectors(
    format: str, outputs: int, inputs: int, *, group: int, run: int = 0, kind: VectorKind
) -> Weight:
    """Return a random matrix of vectors or trits; with a run, scales are codes times its step."""
    random = torch.Generator().manual_seed(outputs + inputs + group)
    shape, groups = (outputs, inputs), -(-inputs // group)
    if is_trits(format):
        points = signs = None
        values, largest = torch.randint(0, 3, shape, generator=random).to(torch.uint8), 1
    else:
        points, values, signs, largest = _vectors(kind, shape, random)
    scales = (torch.rand(outputs, groups, generator=random) + 0.5) * inputs**-0.5 / largest
    scales, steps = scales.half(), None
    outer = torch.full((outputs,), 0.125) if run == 256 else None
    if run:
        codes = torch.randint(0, 16, (outputs, groups), generator=random)
        runs = -(-inputs // run)
        steps = ((torch.rand(outputs, runs, generator=random) + 0.5) * inputs**-0.5).half()
        steps, scales = steps / (2 * largest), (codes * 2 + 1).to(torch.int8)
    return Weight(
        format=format, values=values, points=points, signs=signs, scales=scales, steps=steps,
        outer=outer, group=group, run=run,
    )  # fmt: skip


def _vectors(
    kind: VectorKind, shape: tuple[int, int], random: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, int]:
    """Return points, codes, signs and the largest magnitude."""
    outputs, inputs = shape
    count, books = 1 << kind.code_bits, max(1, kind.books)
    picked = (outputs, inputs // kind.size * books)
    codes = torch.randint(-(1 << 15), 1 << 15, picked, generator=random) & (count - 1)
    codes = codes.to(torch.int32).to(torch.int16)
    points = (books, count, kind.size)
    if kind.books:
        return torch.randn(points, generator=random).half(), codes, None, 1
    if kind.size == 4:
        levels = torch.randint(-8, 8, points, generator=random).to(torch.int8)
        return levels, codes, None, 8
    known = torch.tensor([4, 12, 20, 28, 36, 44, 52, 62], dtype=torch.int8)
    levels = known[torch.randint(0, 8, points, generator=random)]
    signs = torch.randint(0, 256, (outputs, inputs // 8), generator=random).to(torch.uint8)
    return levels, codes, signs, 62

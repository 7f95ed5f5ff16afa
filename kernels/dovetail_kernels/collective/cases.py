"""Cases of the collectives: each rank's inputs, and how a rank's results are compared.

A case makes the tensors of all ranks from a seed, so each rank knows the others' inputs and all
expected results. Answers must equal the definition bit by bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from dovetail_kernels.collective import reference
from dovetail_kernels.collective.native import DTYPES, SharedMemoryRanks

SHAPES = ((0,), (), (1,), (3, 17), (5, 0, 2), (1000,), (16, 1024), (33, 1001), (300, 777))
"""From nothing to several chunks of a small capacity, even and odd."""
MOVES_ONLY = (torch.int64, torch.uint8, torch.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCase:
    """The input tensors of a group's ranks: `shape` each, in `dtype`; with gaps between columns if
    `has_gaps`."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    seed: int
    has_gaps: bool = False

    @property
    def name(self) -> str:
        """Return its name in reports."""
        dtype = str(self.dtype).removeprefix("torch.")
        return f"{list(self.shape)} {dtype}{' gaps' if self.has_gaps else ''} seed {self.seed}"

    def tensors(self, count: int, *, offset: int = 0) -> list[torch.Tensor]:
        """Return `count` tensors, the same ones for every caller."""
        generator = torch.Generator().manual_seed(1000 * self.seed + offset)
        return [self._tensor(self.shape, generator) for _ in range(count)]

    def pieces(self, size: int) -> list[list[torch.Tensor]]:
        """Return each rank's pieces for each rank; their first sizes differ."""
        generator = torch.Generator().manual_seed(1000 * self.seed + 999)
        rows = torch.randint(0, 9, (size, size), generator=generator).tolist()
        rest = self.shape[1:]
        return [[self._tensor((count, *rest), generator) for count in row] for row in rows]

    def _tensor(self, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
        values = torch.randn(shape, generator=generator) * 30
        converted = values.to(self.dtype)
        if self.has_gaps and converted.dim():
            return torch.stack([converted, converted + 1], dim=-1)[..., 0]
        return converted


def cases() -> list[GroupCase]:
    """Return every shape in every dtype that is added up, some with gaps, some of other dtypes."""
    plain = [GroupCase(shape=shape, dtype=dtype, seed=1) for shape in SHAPES for dtype in DTYPES]
    gaps = [
        GroupCase(shape=shape, dtype=dtype, seed=2, has_gaps=True)
        for shape in ((3, 17), (33, 1001))
        for dtype in DTYPES
    ]
    moves = [GroupCase(shape=(7, 300), dtype=dtype, seed=3) for dtype in MOVES_ONLY]
    return plain + gaps + moves


def random_cases(seed: int, count: int, largest: int) -> list[GroupCase]:
    """Return cases of random sizes and dtypes, more small ones than large ones."""
    generator = torch.Generator().manual_seed(seed)
    chances = torch.rand((count, 2), generator=generator).tolist()
    dtypes = (*DTYPES, *MOVES_ONLY)
    return [
        GroupCase(
            shape=(int(largest ** chances[i][0]),),
            dtype=dtypes[int(chances[i][1] * len(dtypes))],
            seed=seed + i,
        )
        for i in range(count)
    ]


def check_case(ranks: SharedMemoryRanks, case: GroupCase) -> list[str]:
    """Return which calls answer something else than the definition; the other ranks do as much."""
    rank, size = ranks.rank, ranks.size
    found: dict[str, tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]]] = {}
    xs = case.tensors(size)
    gathered = reference.all_gather(xs)
    again = ranks.all_gather(xs[rank], out=torch.zeros_like(gathered))
    found["all_gather"] = [ranks.all_gather(xs[rank]), again], [gathered] * 2
    root = case.seed % size
    found["broadcast"] = [ranks.broadcast(case.tensors(size)[rank], root)], [xs[root]]
    if case.dtype in DTYPES:
        x = case.tensors(size)[rank]
        found["all_reduce"] = [x, ranks.all_reduce(x)], [reference.all_reduce(xs)] * 2
        parts = [torch.stack(case.tensors(size, offset=q)) for q in range(size)]
        wanted = reference.reduce_scatter(parts, rank)
        found["reduce_scatter"] = [ranks.reduce_scatter(parts[rank])], [wanted]
    if case.shape:
        pieces = case.pieces(size)
        wanted_pieces = reference.all_to_all(pieces, rank)
        found["all_to_all"] = ranks.all_to_all(pieces[rank]), wanted_pieces
    if size == 2:
        found["send"] = _passed(ranks, xs), [xs[0], xs[1], xs[1]]
    return [
        f"{call} {case.name}"
        for call, (ours, wanted) in found.items()
        if not all(_is_same(a, b) for a, b in zip(ours, wanted, strict=True))
    ]


def _passed(ranks: SharedMemoryRanks, xs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return the tensors received when rank 0 sends once and rank 1 twice; else a rank's own."""
    found = []
    for sender, x in ((0, xs[0]), (1, xs[1]), (1, xs[1])):
        if ranks.rank == sender:
            ranks.send(x)
        found.append(x if ranks.rank == sender else ranks.receive(torch.empty_like(x)))
    return found


def _is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(one, other)

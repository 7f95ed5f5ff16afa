"""Cases of low_rank: which rows have which slots, ranks below the largest, parts, kinds of base.

What must not be read (rows of a matrix beyond its rank, slots that no row has) is infinite.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from dovetail_kernels.op import Arguments, Case
from dovetail_kernels.random import normal, tolerance

RANKS = (16, 1, 8, 0, 5, 64, 16, 3, 7)
"""The rank in each slot, if it is not above the largest; no row has the last slot."""
EIGHT = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class LowRankShape:
    """A case's sizes. `rows` says how rows have slots: each its own in turn, "one" slot for all,
    "mixed" at random, "none", or "empty": slots of rank 0. `base` is "none", "bias" or "rows"."""

    tokens: int
    inputs: int = 72
    parts: tuple[int, ...] = (90,)
    largest: int = 16
    ranks: tuple[int, ...] = RANKS
    rows: str = "mixed"
    base: str = "none"
    dtype: torch.dtype = torch.float32
    weights: torch.dtype = torch.bfloat16
    apart: int = 0

    @property
    def label(self) -> str:
        """Return the name of the case."""
        sizes = "_".join(map(str, self.parts))
        kind = str(self.weights).removeprefix("torch.")
        apart = "_apart" if self.apart else ""
        return (
            f"{self.rows}_T{self.tokens}_I{self.inputs}_O{sizes}_R{self.largest}_{self.base}_{kind}"
            + apart
        )

    @property
    def slots(self) -> list[int]:
        """Return the slot of each row."""
        used = [s for s in range(EIGHT) if self.ranks[s]]
        if self.rows == "each":
            return [used[t % len(used)] for t in range(self.tokens)]
        if self.rows == "mixed":
            random = torch.Generator().manual_seed(self.tokens)
            return (torch.randint(-1, EIGHT, (self.tokens,), generator=random)).tolist()
        if self.rows == "empty":
            return [self.ranks.index(0)] * self.tokens
        return [used[0] if self.rows == "one" else -1] * self.tokens

    @property
    def known(self) -> tuple[int, ...]:
        """Return the rank in each slot."""
        return tuple(min(rank, self.largest) for rank in self.ranks)


def cases() -> list[Case]:
    """Return the cases that are checked."""
    rows = [
        LowRankShape(tokens=tokens, rows=kind, base=base)
        for tokens, kind, base in (
            (1, "one", "bias"), (1, "none", "bias"), (2, "each", "rows"), (3, "empty", "rows"),
            (5, "one", "bias"), (8, "each", "none"), (8, "one", "rows"), (9, "mixed", "bias"),
            (17, "one", "none"), (33, "mixed", "rows"), (40, "none", "none"), (64, "mixed", "none"),
            (300, "mixed", "rows"), (300, "one", "bias"), (300, "none", "rows"),
        )
    ]  # fmt: skip
    ranks = [
        LowRankShape(
            tokens=tokens, largest=largest, ranks=(rank, 1, 8, 0, 16, 2, 4, 3, 1), rows=kind
        )
        for rank, largest in ((1, 1), (1, 8), (8, 16), (64, 64), (64, 100), (256, 256), (250, 300))
        for tokens, kind in ((1, "one"), (8, "mixed"), (21, "one"))
    ]
    parts = [
        LowRankShape(tokens=tokens, inputs=inputs, parts=parts, base="rows", weights=weights)
        for parts in ((130, 40), (200, 16, 16), (1, 33, 1500))
        for inputs in (17, 200)
        for tokens in (3, 40)
        for weights in (torch.float32, torch.bfloat16, torch.float16)
    ]
    odd = [
        LowRankShape(tokens=5, inputs=inputs, parts=(outputs,), apart=3 * apart, weights=weights)
        for inputs, outputs, apart in ((1, 1, 0), (3, 5, 1), (1000, 7, 0), (64, 513, 1))
        for weights in (torch.float32, torch.bfloat16, torch.float16)
    ]
    return [_case(shape) for shape in (*rows, *ranks, *parts, *odd)] + _halves()


def small_cases() -> list[Case]:
    """Return the cases that are checked if kernels are interpreted."""
    small = [
        LowRankShape(tokens=1, inputs=40, parts=(20,), rows="one"),
        LowRankShape(tokens=9, inputs=40, parts=(20, 7), base="bias"),
        LowRankShape(tokens=20, inputs=300, parts=(30, 10, 10), base="rows", largest=64),
        LowRankShape(tokens=4, inputs=40, parts=(20,), rows="none", base="rows"),
        LowRankShape(
            tokens=40, inputs=40, parts=(300,), rows="one", weights=torch.float32, apart=8
        ),
        LowRankShape(tokens=3, inputs=1100, parts=(9,), rows="empty", weights=torch.float16),
    ]
    return [_case(shape) for shape in small] + _halves()


def perf_cases() -> list[Case]:
    """Return the cases that are timed: layers of a 0.47 billion parameter model."""
    layers = (
        (896, (896, 128, 128)), (896, (896,)), (896, (4864, 4864)), (4864, (896,)),
    )  # fmt: skip
    kinds = ((8, "each"), (8, "one"), (8, "none"), (512, "one"))
    return [
        _case(
            LowRankShape(
                tokens=tokens, inputs=inputs, parts=parts, ranks=(16,) * 9, rows=rows, dtype=kind
            )
        )
        for kind in (torch.float32, torch.bfloat16)
        for inputs, parts in layers
        for tokens, rows in kinds
    ]


def _halves() -> list[Case]:
    """Return cases of 16-bit activations, which the CPU's kernels leave to the GPU's."""
    shapes = (
        LowRankShape(tokens=9, inputs=104, parts=(70, 30), base="rows"),
        LowRankShape(tokens=35, inputs=104, parts=(70,), base="bias", rows="one"),
    )
    return [
        _case(replace(shape, dtype=dtype, weights=weights))
        for shape in shapes
        for dtype, weights in (
            (torch.bfloat16, torch.bfloat16),
            (torch.float16, torch.float16),
            (torch.float16, torch.float32),
        )
    ]


def _case(shape: LowRankShape) -> Case:
    slots = [s for s in shape.slots if s >= 0]
    shrunk, outputs = len(shape.parts) * shape.inputs, sum(shape.parts)
    read = sum(shape.known[s] for s in set(slots)) * (shrunk + outputs) * shape.weights.itemsize
    bases = {"none": 0, "bias": 1, "rows": shape.tokens}[shape.base]
    rows = len(slots) * shape.inputs + (shape.tokens + bases) * outputs
    return Case(
        name=shape.label,
        dtype=shape.dtype,
        build=_builder(shape),
        moved_bytes=read + rows * shape.dtype.itemsize,
        flops=2 * sum(shape.known[s] for s in slots) * (shrunk + outputs),
        rtol=tolerance(shape.dtype),
        atol=tolerance(shape.dtype),
    )


def _builder(shape: LowRankShape) -> Callable[[torch.device], Arguments]:
    def build(device: torch.device) -> Arguments:
        count, largest, outputs = len(shape.ranks), shape.largest, sum(shape.parts)
        down_shape = (count, len(shape.parts), largest, shape.inputs)
        down = normal(down_shape, torch.float32, device, seed=2) * shape.inputs**-0.5
        up = normal((count, largest, outputs), torch.float32, device, seed=3) * largest**-0.5
        used = set(shape.slots)
        for slot, rank in enumerate(shape.known):
            first = rank if slot in used else 0
            down[slot, :, first:] = torch.inf
            up[slot, first:] = torch.inf
        wide = normal((shape.tokens, shape.inputs + shape.apart), shape.dtype, device, seed=1)
        arguments: Arguments = {
            "x": wide[:, : shape.inputs],
            "slots": torch.tensor(shape.slots, dtype=torch.int32, device=device),
            "down": down.to(shape.weights),
            "up": up.to(shape.weights),
            "ranks": torch.tensor(shape.known, dtype=torch.int32, device=device),
            "parts": shape.parts,
        }
        bases = {"bias": (outputs,), "rows": (shape.tokens, outputs)}
        if shape.base in bases:
            arguments["base"] = normal(bases[shape.base], shape.dtype, device, seed=4)
        return arguments

    return build

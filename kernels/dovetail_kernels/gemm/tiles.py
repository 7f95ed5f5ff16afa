"""Tiles of the GPU's products: rows and outputs of a program, parts of the inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from dovetail_kernels.gpu.facts import facts_of
from dovetail_kernels.gpu.table import best
from dovetail_kernels.gpu.tune import Choice

OP_NAME = "gemm"
PROGRAMS = 264
"""As many programs as keep a device of 132 processors busy: two on each, of four warps."""
MAX_PARTS = 8
MIN_PANELS = 4
"""Panels that a program multiplies at least, so that loads run ahead of it."""
MAX_SPLIT_ROWS = 64
"""Above, a product is bound by its operations: larger tiles, inputs in one part, and scales of 16
inputs multiplied into the weights."""
TUNED_ROWS = (1, 32, 64, 4096)
TUNED_FORMATS = {
    "int8": 0,
    "int4": 128,
    "int4_int8": 128,
    "int8_float32": 128,
    "float8": 128,
    "table4": 32,
}
"""The cases timed for the table, and their groups: each combination of codes and activations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiles:
    """The shape of a product: rows and outputs of a program, parts of the inputs, and how the
    device runs it."""

    rows: int
    outputs: int
    parts: int
    warps: int
    stages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The facts besides the shape that determine a product's tile: the kind of codes, the
    multiplied type, whether a word's codes have separate sums; bytes of an output's words in a
    step, and of a row's inputs."""

    kind: str
    dot_type: str
    has_own_sums: bool
    word_bytes: int
    input_bytes: int


def tiles(rows: int, work: Work, device: torch.device) -> Tiles:
    """Return the tiles of a product of some rows, in one part: from the table, else from the
    shape."""
    usual = _fitting(_usual(rows, work), work, facts_of(device).shared_bytes)
    return best(OP_NAME, key_of(rows, work), usual, device)


def key_of(rows: int, work: Work) -> str:
    """Return the table's key of a product: by codes, multiplied type and rows up to a bound."""
    bound = next((str(n) for n in (16, 32, MAX_SPLIT_ROWS) if rows <= n), "more")
    return f"{work.kind} {work.dot_type} {bound}"


def parts_of(rows: int, outputs: int, panels: int) -> int:
    """Return into how many parts inputs are divided. They depend only on the weight: a row's sums
    are the same in every batch of up to 64 rows, and in every larger one."""
    if rows > MAX_SPLIT_ROWS:
        return 1
    parts = 1
    while parts < MAX_PARTS and parts * -(-outputs // 64) < PROGRAMS:
        parts *= 2
    while parts > 1 and panels // parts < MIN_PANELS:
        parts //= 2
    return parts


def _usual(rows: int, work: Work) -> Tiles:
    """Return the tiles that follow from the rows. float32 is multiplied on plain cores, whose
    operands take registers: larger tiles than these spill."""
    if work.dot_type == "fp32":
        return Tiles(rows=16 if rows <= 16 else 32, outputs=64, parts=1, warps=8, stages=2)
    if rows > MAX_SPLIT_ROWS and work.has_own_sums and work.dot_type != "int8":
        return Tiles(rows=64, outputs=128, parts=1, warps=8, stages=3)  # 128 rows spill
    if rows > MAX_SPLIT_ROWS:
        return Tiles(rows=128, outputs=128, parts=1, warps=8, stages=3)
    height = 16 if rows <= 16 else 32 if rows <= 32 else 64
    return Tiles(rows=height, outputs=64, parts=1, warps=4, stages=4)


def _fitting(tile: Tiles, work: Work, shared_bytes: int) -> Tiles:
    """Return a tile with as many stages as shared memory holds, up to its own; half its rows if two
    do not fit."""
    stage_bytes = tile.outputs * work.word_bytes + tile.rows * work.input_bytes
    stages = min(tile.stages, shared_bytes // stage_bytes)
    if stages < 2 and tile.rows > 16:
        return _fitting(replace(tile, rows=tile.rows // 2), work, shared_bytes)
    return replace(tile, stages=max(1, stages))


def choices(device: str) -> Sequence[Choice]:
    """Return the products that may be tuned: products of 4096 x 4096 in bfloat16, few rows and
    many."""
    from dovetail_kernels.gemm.cases import make_weight
    from dovetail_kernels.gemm.gpu import pack

    tunable = []
    for format, group in TUNED_FORMATS.items():
        weight = pack(make_weight(format, 4096, 4096, group=group), device=device)
        for rows in TUNED_ROWS:
            x = torch.randn(rows, 4096, device=device, dtype=torch.bfloat16)
            tunable.append(
                Choice(
                    key=key_of(rows, weight.work(x)),
                    run=_runner(weight, x),
                    candidates=_candidates(rows),
                )
            )
    return tunable


def _runner(weight: Callable[..., Any], x: torch.Tensor) -> Callable[[], Any]:
    return partial(weight, x)


def _candidates(rows: int) -> list[dict[str, int]]:
    outputs = (64, 128, 256) if rows > MAX_SPLIT_ROWS else (32, 64, 128)
    return [
        {"outputs": wide, "warps": warps, "stages": stages}
        for wide in outputs
        for warps in (4, 8)
        for stages in (2, 3, 4, 5)
    ]

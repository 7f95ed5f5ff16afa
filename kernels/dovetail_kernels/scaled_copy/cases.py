"""Cases of scaled_copy: every pair of types, memory layouts of both, and sizes that do not fill a
register."""

from __future__ import annotations

from collections.abc import Callable

import torch

from dovetail_kernels.op import Arguments, Case
from dovetail_kernels.random import normal

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
LAYOUTS = ("rows", "turned", "joined", "any")
"""Both contiguous; the target's axes exchanged; so, and nothing between the source's rows; neither
side contiguous."""


def cases() -> list[Case]:
    """Return the cases that are checked."""
    types = [
        _case(source, target, layout, 3, 37, 21)
        for source in FLOATS
        for target in FLOATS
        for layout in LAYOUTS
    ]
    sizes = [
        _case(torch.bfloat16, torch.bfloat16, layout, 1, rows, columns)
        for layout in LAYOUTS
        for rows, columns in ((1, 1), (16, 896), (130, 16), (131, 4), (70, 100))
    ]
    return types + sizes


def perf_cases() -> list[Case]:
    """Return an adapter's matrices of a layer with 4864 inputs or outputs."""
    return [
        _case(torch.bfloat16, torch.bfloat16, "rows", 48, 16, 4864),
        _case(torch.bfloat16, torch.bfloat16, "turned", 48, 4864, 16),
        _case(torch.bfloat16, torch.bfloat16, "joined", 48, 4864, 4),
        _case(torch.float32, torch.bfloat16, "turned", 48, 4864, 16),
    ]


def _case(
    source: torch.dtype,
    target: torch.dtype,
    layout: str,
    count: int,
    rows: int,
    columns: int,
) -> Case:
    kinds = "_".join(str(kind).removeprefix("torch.") for kind in (source, target))
    numbers = count * rows * columns
    return Case(
        name=f"{layout}_{count}x{rows}x{columns}_{kinds}",
        dtype=target,
        build=_builder(source, target, layout, (count, rows, columns)),
        mutates=("targets",),
        rtol=0.0,
        atol=0.0,
        moved_bytes=numbers * (source.itemsize + target.itemsize),
        flops=numbers,
    )


def _builder(
    source: torch.dtype,
    target: torch.dtype,
    layout: str,
    shape: tuple[int, int, int],
) -> Callable[[torch.device], Arguments]:
    count, rows, columns = shape

    def build(device: torch.device) -> Arguments:
        wide = normal((count, rows, 2 * columns), source, device, seed=rows)
        sources = wide[:, :, ::2] if layout == "any" else wide[:, :, :columns]
        storage = torch.zeros(count, rows, 2 * columns, dtype=target, device=device)
        targets = storage[:, :, columns:]
        if layout == "joined":
            sources = sources.contiguous()
        if layout in ("turned", "joined"):
            targets = storage.view(count, 2 * columns, rows)[:, columns:].mT
        elif layout == "any":
            targets = storage[:, :, ::2]
        scales = [2.5 - number for number in range(count)]
        return {"sources": sources, "targets": targets, "scales": scales}

    return build

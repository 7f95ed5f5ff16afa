"""Cases of embedding."""

from __future__ import annotations

from collections.abc import Callable

import torch

from dovetail_kernels.op import Arguments, Case
from dovetail_kernels.random import normal

TABLES = (torch.float32, torch.bfloat16, torch.float16, torch.int8)
PERF_TOKENS = (1, 8, 256)
PERF_ROWS = 2000


def cases() -> list[Case]:
    """Return every format of a table, odd sizes, a factor, and ids of other ranks."""
    plain = [
        _case(kind, tokens, size, rows=50, first=first, factor=factor)
        for kind in TABLES
        for tokens, size in ((1, 1024), (5, 77), (70, 300))
        for first, factor in ((0, 1.0), (20, 3.25))
    ]
    added = [
        _case(kind, 70, 77, rows=50, first=20, factor=1.0, is_added=True, has_ids=has_ids)
        for kind in TABLES
        for has_ids in (True, False)
    ]
    return plain + added


def perf_cases() -> list[Case]:
    """Return the cases that are timed."""
    return [
        _case(kind, tokens, 1024, rows=PERF_ROWS, first=0, factor=1.0)
        for kind in TABLES
        for tokens in PERF_TOKENS
    ]


def _case(
    kind: torch.dtype,
    tokens: int,
    size: int,
    *,
    rows: int,
    first: int,
    factor: float,
    is_added: bool = False,
    has_ids: bool = True,
) -> Case:
    name = str(kind).removeprefix("torch.")
    end = ("_added" if is_added else "") + ("" if has_ids else "_first_row")
    build = _builder(kind, tokens, size, rows, first, factor)

    def build_added(device: torch.device) -> Arguments:
        arguments = build(device)
        if not has_ids:
            arguments["ids"] = None
        return {**arguments, "onto": normal((tokens, size), torch.float32, device, seed=3)}

    return Case(
        name=f"{name}_T{tokens}_E{size}_from{first}{end}",
        dtype=torch.float32,
        build=build_added if is_added else build,
        mutates=("onto",) if is_added else (),
        moved_bytes=tokens * size * (kind.itemsize + 4),
        flops=tokens * size,
        rtol=1e-6,
        atol=1e-6,
    )


def _builder(
    kind: torch.dtype, tokens: int, size: int, rows: int, first: int, factor: float
) -> Callable[[torch.device], Arguments]:
    def build(device: torch.device) -> Arguments:
        wide = normal((rows, size), torch.float32, device, seed=1)
        is_int8 = kind == torch.int8
        return {
            "ids": (torch.arange(tokens, device=device) * 7919 + 1) % rows,
            "table": (wide * 40).round().clamp(-127, 127).to(kind) if is_int8 else wide.to(kind),
            "scales": normal((rows,), torch.float32, device, seed=2) if is_int8 else None,
            "first": first,
            "factor": factor,
        }

    return build

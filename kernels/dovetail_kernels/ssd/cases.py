"""Cases of ssd: rows that begin, continue, end blocks; shapes of heads; 16-bit states.

x, b and c are parts of one wider matrix, as in a layer, and states are strided. Other blocks than
the row's own are compared too: a state is a result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from dovetail_kernels.op import Arguments, Case
from dovetail_kernels.random import normal
from dovetail_kernels.state_cases import ROWS, HeadSizes, block_cases, dtype_cases, timed_cases

LIMIT = (0.001, 0.9)
NO_LIMIT = (0.0, float("inf"))


@dataclass(frozen=True, slots=True, kw_only=True)
class SsdSetup(HeadSizes):
    """A case's sizes: `heads` are H and G. `has_dt`, `has_d`, `has_bias`: those are given. `apart`:
    extra columns of the wider matrix."""

    head_size: int = 20
    state_size: int = 32
    has_dt: bool = True
    has_d: bool = True
    has_bias: bool = True
    limit: tuple[float, float] = NO_LIMIT


REAL = SsdSetup(
    rows=((300, 1),) * 8,
    heads=(24, 1),
    head_size=64,
    state_size=128,
    block_tokens=256,
    apart=0,
)


def cases() -> list[Case]:
    """Return the cases that are checked."""
    mixed = SsdSetup(rows=ROWS["mixed"])
    rules = [
        _case("lightning", replace(mixed, has_dt=False, has_d=False, has_bias=False)),
        _case("limit", replace(mixed, limit=LIMIT, has_bias=False)),
        _case("groups", replace(mixed, heads=(6, 6))),
        *block_cases(_case, mixed),
        *dtype_cases(_case, mixed),
    ]
    sizes = [
        _case(f"{name}_P{size}_S{states}", SsdSetup(rows=rows, head_size=size, state_size=states))
        for name, rows in ROWS.items()
        for size, states in ((1, 1), (16, 16), (64, 128), (80, 100), (130, 256))
    ]
    return rules + sizes


def small_cases() -> list[Case]:
    """Return the cases that are checked if kernels are interpreted."""
    few = SsdSetup(rows=((5, 1), (3, 17), (0, 0), (16, 5)), heads=(2, 1))
    long = replace(few, rows=((10, 130), (60, 30)), block_tokens=64, limit=LIMIT)
    lightning = replace(few, has_dt=False, has_d=False, has_bias=False)
    return [
        _case("decode", replace(few, rows=ROWS["decode"])),
        _case("mixed", few),
        _case("own_blocks", replace(few, row_sizes=(1, 8, 1, 1))),
        _case("lightning", lightning),
        _case("blocks_of_64", replace(long, dtype=torch.float16)),
        _case("narrow", replace(few, dtype=torch.float16, kept=torch.bfloat16, heads=(4, 2))),
        _case("narrow_lightning", replace(lightning, dtype=torch.bfloat16)),
        _case("state_bfloat16", replace(few, rows=ROWS["decode"], kept=torch.bfloat16)),
    ]


def perf_cases() -> list[Case]:
    """Return decodes and prefills of a layer of Mamba 2 with 130 million parameters."""
    return timed_cases(_case, REAL)


def _case(name: str, setup: SsdSetup) -> Case:
    (heads, groups), tokens = setup.heads, setup.num_tokens
    numbers = heads * setup.head_size * setup.state_size
    wide = 2 * heads * setup.head_size + 2 * groups * setup.state_size + heads
    return Case(
        name=name,
        dtype=setup.dtype,
        build=_builder(setup),
        mutates=("state",),
        moved_bytes=setup.moved_bytes(numbers, wide),
        flops=5 * tokens * numbers,
        rtol=setup.tolerance,
        atol=setup.tolerance,
    )


def _builder(setup: SsdSetup) -> Callable[[torch.device], Arguments]:
    def build(device: torch.device) -> Arguments:
        step, num_blocks = setup.step(device)
        (heads, groups), tokens = setup.heads, setup.num_tokens
        sizes = (heads * setup.head_size, groups * setup.state_size, groups * setup.state_size)
        wide = normal((tokens, sum(sizes) + setup.apart), setup.dtype, device, seed=1)
        x, b, c = wide[:, : sum(sizes)].split(list(sizes), dim=1)
        b.mul_(setup.state_size**-0.5)
        bias = normal((heads,), torch.float32, device, seed=4) if setup.has_bias else None
        shape = (heads, setup.head_size, setup.state_size)
        return {
            "x": x.unflatten(1, (heads, -1)),
            "dt": normal((tokens, heads), setup.dtype, device, seed=2) if setup.has_dt else None,
            "a": -normal((heads,), torch.float32, device, seed=3).abs(),
            "b": b.unflatten(1, (groups, -1)),
            "c": c.unflatten(1, (groups, -1)),
            "d": normal((heads,), torch.float32, device, seed=5) if setup.has_d else None,
            "dt_bias": bias,
            "dt_limit": setup.limit,
            "state": setup.states(shape, num_blocks, device, seed=6),
            **step,
        }

    return build

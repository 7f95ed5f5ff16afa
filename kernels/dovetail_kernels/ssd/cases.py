"""Cases of ssd: rows that begin, continue, end blocks; shapes of heads; 16-bit states.

x, b and c are parts of one wider matrix, as in a layer, and states are strided. Other blocks than
the row's own are compared too: a state is a result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from dovetail_kernels.op import Arguments, Case
from dovetail_kernels.random import normal, tolerance
from dovetail_kernels.states import step_arguments

Rows = tuple[tuple[int, int], ...]
"""Per row (tokens before the step, tokens in it)."""
ROWS: dict[str, Rows] = {
    "decode": ((0, 1), (7, 1), (8, 1), (15, 1), (40, 1)),
    "prefill": ((0, 37), (0, 1), (0, 8), (0, 16)),
    "mixed": ((5, 1), (3, 40), (0, 0), (16, 5), (0, 9), (7, 1)),
}
LIMIT = (0.001, 0.9)
NO_LIMIT = (0.0, float("inf"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """A case's sizes: `heads` are H and G. `has_dt`, `has_d`, `has_bias`: those are given. `apart`:
    extra columns of the wider matrix."""

    rows: Rows
    heads: tuple[int, int] = (4, 2)
    head_size: int = 20
    state_size: int = 32
    block_tokens: int = 8
    row_sizes: tuple[int, ...] = ()
    has_dt: bool = True
    has_d: bool = True
    has_bias: bool = True
    limit: tuple[float, float] = NO_LIMIT
    apart: int = 3
    dtype: torch.dtype = torch.float32
    kept: torch.dtype = torch.float32


REAL = Setup(
    rows=((300, 1),) * 8,
    heads=(24, 1),
    head_size=64,
    state_size=128,
    block_tokens=256,
    apart=0,
)


def cases() -> list[Case]:
    """Return the cases that are checked."""
    mixed = Setup(rows=ROWS["mixed"])
    rules = [
        _case("lightning", replace(mixed, has_dt=False, has_d=False, has_bias=False)),
        _case("limit", replace(mixed, limit=LIMIT, has_bias=False)),
        _case("groups", replace(mixed, heads=(6, 6))),
        _case("blocks_of_1", replace(mixed, block_tokens=1)),
        _case("own_blocks", replace(mixed, row_sizes=(1, 8, 1, 1, 8, 8))),
        _case("blocks_of_64", replace(mixed, rows=((0, 150), (60, 70)), block_tokens=64)),
    ]
    kinds = [
        _case(f"state_{str(kept).removeprefix('torch.')}", replace(mixed, kept=kept, dtype=dtype))
        for kept in (torch.bfloat16, torch.float16)
        for dtype in (torch.float32, kept)
    ]
    narrow = [
        _case("narrow", replace(mixed, dtype=dtype)) for dtype in (torch.bfloat16, torch.float16)
    ]
    sizes = [
        _case(f"{name}_P{size}_S{states}", Setup(rows=rows, head_size=size, state_size=states))
        for name, rows in ROWS.items()
        for size, states in ((1, 1), (16, 16), (64, 128), (80, 100), (130, 256))
    ]
    return rules + kinds + narrow + sizes


def small_cases() -> list[Case]:
    """Return the cases that are checked if kernels are interpreted."""
    few = Setup(rows=((5, 1), (3, 17), (0, 0), (16, 5)), heads=(2, 1))
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
    rows: dict[str, Rows] = {
        "decode_1": ((300, 1),),
        "decode_8": ((300, 1),) * 8,
        "prefill_512": ((0, 512),),
        "prefill_2048": ((0, 2048),),
    }
    kept = (torch.float32, torch.bfloat16)
    return [
        _case(f"{name}_{str(one).removeprefix('torch.')}", replace(REAL, rows=some, kept=one))
        for name, some in rows.items()
        for one in kept
    ]


def _case(name: str, setup: Setup) -> Case:
    (heads, groups), tokens = setup.heads, sum(here for _, here in setup.rows)
    numbers = heads * setup.head_size * setup.state_size
    states = sum((before > 0) + 1 for before, here in setup.rows if here) * numbers
    wide = 2 * heads * setup.head_size + 2 * groups * setup.state_size + heads
    allowed = max(tolerance(setup.dtype), tolerance(setup.kept))
    return Case(
        name=name,
        dtype=setup.dtype,
        build=_builder(setup),
        mutates=("state",),
        moved_bytes=states * setup.kept.itemsize + tokens * wide * setup.dtype.itemsize,
        flops=5 * tokens * numbers,
        rtol=allowed,
        atol=allowed,
    )


def _builder(setup: Setup) -> Callable[[torch.device], Arguments]:
    def build(device: torch.device) -> Arguments:
        step, num_blocks = step_arguments(
            setup.rows, setup.block_tokens, device, sizes=setup.row_sizes
        )
        (heads, groups), tokens = setup.heads, sum(here for _, here in setup.rows)
        sizes = (heads * setup.head_size, groups * setup.state_size, groups * setup.state_size)
        wide = normal((tokens, sum(sizes) + setup.apart), setup.dtype, device, seed=1)
        x, b, c = wide[:, : sum(sizes)].split(list(sizes), dim=1)
        b.mul_(setup.state_size**-0.5)
        bias = normal((heads,), torch.float32, device, seed=4) if setup.has_bias else None
        return {
            "x": x.unflatten(1, (heads, -1)),
            "dt": normal((tokens, heads), setup.dtype, device, seed=2) if setup.has_dt else None,
            "a": -normal((heads,), torch.float32, device, seed=3).abs(),
            "b": b.unflatten(1, (groups, -1)),
            "c": c.unflatten(1, (groups, -1)),
            "d": normal((heads,), torch.float32, device, seed=5) if setup.has_d else None,
            "dt_bias": bias,
            "dt_limit": setup.limit,
            "state": _states(setup, num_blocks, device),
            **step,
        }

    return build


def _states(setup: Setup, num_blocks: int, device: torch.device) -> torch.Tensor:
    """Return states of random numbers with gaps between blocks."""
    shape = (setup.heads[0], setup.head_size, setup.state_size)
    size = shape[0] * shape[1] * shape[2]
    wide = normal((num_blocks, size + 16), setup.kept, device, seed=6)
    return wide[:, :size].unflatten(1, shape)

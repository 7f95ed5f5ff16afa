"""Cases of gated_delta: rows that begin, continue, end blocks; shapes of heads; 16-bit states.

q, k and v are parts of one wider matrix, as in a layer, and states are strided. Other blocks than
the row's own are compared too: a state is a result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod

import torch

from dovetail_kernels.op import Arguments, Case
from dovetail_kernels.random import normal
from dovetail_kernels.state_cases import ROWS, HeadSizes, block_cases, dtype_cases, timed_cases


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaSetup(HeadSizes):
    """A case's sizes: `heads` are H and K. `apart`: extra columns of the wider matrix.
    `by_channel`: each channel of a key decays by itself."""

    key_size: int = 24
    value_size: int = 20
    by_channel: bool = False
    beta_scale: float = 1.0
    least_log: float = 0.0


REAL = DeltaSetup(
    rows=((300, 1),) * 8,
    heads=(32, 16),
    key_size=128,
    value_size=128,
    block_tokens=256,
    apart=0,
)


def cases() -> list[Case]:
    """Return the cases that are checked."""
    mixed = DeltaSetup(rows=ROWS["mixed"])
    rules = [
        _case("alike", replace(mixed, heads=(3, 3))),
        *block_cases(_case, mixed),
        *dtype_cases(_case, mixed),
    ]
    sizes = [
        _case(f"{name}_D{keys}_V{values}", DeltaSetup(rows=rows, key_size=keys, value_size=values))
        for name, rows in ROWS.items()
        for keys, values in ((1, 1), (16, 16), (128, 128), (80, 100), (33, 250))
    ]
    return rules + sizes + _by_channel(mixed) + _long()


def _by_channel(mixed: DeltaSetup) -> list[Case]:
    """Return channels that decay by themselves, and states that a key may turn around."""
    own = replace(mixed, by_channel=True)
    return [
        _case("turned", replace(mixed, beta_scale=2.0)),
        _case("channels", own),
        _case("channels_bounded", replace(own, least_log=-5.0)),
        _case("bounded", replace(mixed, least_log=-2.0)),
        _case("channels_of_64", replace(own, rows=((0, 150), (60, 70)), block_tokens=64)),
        _case("channels_D33", replace(own, heads=(2, 2), key_size=33, value_size=70)),
        _case("channels_bfloat16", replace(own, kept=torch.bfloat16)),
    ]


def small_cases() -> list[Case]:
    """Return the cases that are checked if kernels are interpreted."""
    few = DeltaSetup(rows=((5, 1), (3, 17), (0, 0), (16, 5)), heads=(2, 1))
    return [
        _case("decode", replace(few, rows=ROWS["decode"])),
        _case("mixed", few),
        _case("own_blocks", replace(few, row_sizes=(1, 8, 1, 1))),
        _case("narrow", replace(few, dtype=torch.float16, kept=torch.bfloat16, heads=(4, 2))),
        _case("channels", replace(few, by_channel=True, beta_scale=2.0)),
        _case("bounded", replace(few, by_channel=True, least_log=-5.0)),
        *_long(),
    ]


def _long() -> list[Case]:
    """Return rows of several chunks among short ones; chunks that end with blocks, and others."""
    long = DeltaSetup(
        rows=((5, 1), (0, 150), (37, 60), (0, 0), (3, 31), (64, 64)), heads=(2, 1), block_tokens=96
    )
    own = replace(long, by_channel=True)
    half = torch.float16
    return [
        _case("long", replace(long, beta_scale=2.0)),
        _case("long_ends", replace(long, block_tokens=16, rows=((0, 0), (9, 55), (0, 1)))),
        _case("long_own_blocks", replace(long, block_tokens=40, row_sizes=(1, 40, 1, 40, 40, 8))),
        _case("long_narrow", replace(long, dtype=half, kept=torch.bfloat16, heads=(2, 2))),
        _case("long_D70", replace(long, rows=((10, 70),), key_size=70, value_size=33)),
        _case("long_channels", own),
        _case("long_channels_bounded", replace(own, least_log=-5.0, beta_scale=2.0)),
        _case("long_channels_narrow", replace(own, dtype=half, kept=half, block_tokens=40)),
    ]


def perf_cases() -> list[Case]:
    """Return decodes and prefills of a layer of Qwen3-Next-80B-A3B."""
    return timed_cases(_case, REAL)


def _case(name: str, setup: DeltaSetup) -> Case:
    (heads, key_heads), tokens = setup.heads, setup.num_tokens
    numbers = heads * setup.key_size * setup.value_size
    wide = 2 * heads * setup.value_size + 2 * key_heads * setup.key_size + 2 * heads
    return Case(
        name=name,
        dtype=setup.dtype,
        build=_builder(setup),
        mutates=("state",),
        moved_bytes=setup.moved_bytes(numbers, wide),
        flops=7 * tokens * numbers,
        rtol=setup.tolerance,
        atol=setup.tolerance,
    )


def _builder(setup: DeltaSetup) -> Callable[[torch.device], Arguments]:
    def build(device: torch.device) -> Arguments:
        step, num_blocks = setup.step(device)
        (heads, key_heads), tokens = setup.heads, setup.num_tokens
        keys = key_heads * setup.key_size
        decays = (heads, setup.key_size) if setup.by_channel else (heads,)
        sizes = [keys, keys, heads * setup.value_size, prod(decays), heads]
        wide = normal((tokens, sum(sizes) + setup.apart), setup.dtype, device, seed=1)
        q, k, v, decay_in, beta_in = wide[:, : sum(sizes)].split(sizes, dim=1)
        shape = (heads, setup.key_size, setup.value_size)
        return {
            "q": q.unflatten(1, (key_heads, -1)),
            "k": k.unflatten(1, (key_heads, -1)),
            "v": v.unflatten(1, (heads, -1)),
            "decay_in": decay_in.unflatten(1, decays),
            "beta_in": beta_in,
            "a_log": normal((heads,), torch.float32, device, seed=2),
            "dt_bias": normal(decays, torch.float32, device, seed=3),
            "scale": setup.key_size**-0.5,
            "beta_scale": setup.beta_scale,
            "least_log": setup.least_log,
            "state": setup.states(shape, num_blocks, device, seed=4),
            **step,
        }

    return build

"""Cases of bit_fields: widths and runs as files have them."""

from __future__ import annotations

from collections.abc import Callable

import torch

from dovetail_kernels.bit_fields.reference import Plane
from dovetail_kernels.op import Arguments, Case

LAYOUTS = {
    "nibbles": (18, (Plane(2, 18, 4, 16),)),
    "bytes": (34, (Plane(2, 34, 8, 32),)),
    "fifth_bits_in_a_row": (22, (Plane(6, 22, 4, 16), Plane(2, 6, 1, 1, 4))),
    "fifth_bits": (176, (Plane(48, 176, 4, 32), Plane(16, 48, 1, 32, 4))),
    "six_bits": (210, (Plane(0, 128, 4, 64), Plane(128, 192, 2, 32, 4))),
    "three_planes": (12, (Plane(0, 4, 2, 4), Plane(4, 6, 1, 2, 2), Plane(8, 10, 1, 1, 5))),
}


def cases() -> list[Case]:
    """Return few and many blocks of every layout."""
    return [_case(name, count) for name in LAYOUTS for count in (1, 300)]


def perf_cases() -> list[Case]:
    """Return the cases that are timed."""
    return [_case(name, 100_000) for name in ("nibbles", "fifth_bits", "six_bits")]


def _case(name: str, count: int) -> Case:
    size, planes = LAYOUTS[name]
    return Case(
        name=f"{name}_n{count}",
        dtype=torch.uint8,
        build=_builder(name, count),
        moved_bytes=count * (size + planes[0].num_values),
        rtol=0,
        atol=0,
    )


def _builder(name: str, count: int) -> Callable[[torch.device], Arguments]:
    size, planes = LAYOUTS[name]

    def build(device: torch.device) -> Arguments:
        generator = torch.Generator().manual_seed(count)
        blocks = torch.randint(256, (count, size), generator=generator).to(torch.uint8)
        return {"blocks": blocks.to(device), "planes": planes}

    return build

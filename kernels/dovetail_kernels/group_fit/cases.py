"""Cases of group_fit: widths, types, groups and rows that are not whole, importances."""

from __future__ import annotations

from collections.abc import Callable

import torch

from dovetail_kernels.op import Arguments, Case

GROUP, RUN = 32, 8


def cases() -> list[Case]:
    """Return small matrices of all widths, with and without offsets and importances."""
    wide = [_case(bits, (5, 640), has_offsets=o) for bits in (4, 5, 6) for o in (False, True)]
    return [
        *wide,
        _case(4, (3, 1), has_offsets=True),
        _case(4, (9, 76), has_offsets=True, is_weighed=True),
        _case(4, (9, 76), has_offsets=False, is_weighed=True, dtype=torch.float32),
        _case(4, (2, 512), has_offsets=True, is_weighed=True, dtype=torch.float16),
        _case(6, (6, 1056), has_offsets=False, is_weighed=True),
        _case(4, (4, 288), has_offsets=True, factor=0.0),
        _case(4, (4, 288), has_offsets=False, factor=1e-9, dtype=torch.float32),
    ]


def perf_cases() -> list[Case]:
    """Return the cases that are timed."""
    return [_case(bits, (896, 4864), has_offsets=o) for bits, o in ((4, True), (6, False))]


def _case(
    bits: int,
    shape: tuple[int, int],
    *,
    has_offsets: bool,
    is_weighed: bool = False,
    dtype: torch.dtype = torch.bfloat16,
    factor: float = 0.02,
) -> Case:
    kind = ("_offsets" if has_offsets else "") + ("_weighed" if is_weighed else "")
    return Case(
        name=f"int{bits}_N{shape[0]}_K{shape[1]}{kind}_x{factor:g}",
        dtype=dtype,
        build=_builder(bits, shape, has_offsets, is_weighed, dtype, factor),
        moved_bytes=shape[0] * shape[1] * 3,
        flops=shape[0] * shape[1] * 11 * 13,
        rtol=0,
        atol=0,
    )


def _builder(
    bits: int,
    shape: tuple[int, int],
    has_offsets: bool,
    is_weighed: bool,
    dtype: torch.dtype,
    factor: float,
) -> Callable[[torch.device], Arguments]:
    def build(device: torch.device) -> Arguments:
        generator = torch.Generator().manual_seed(bits + shape[1])
        weight = torch.randn(shape, generator=generator) * factor
        weight[:, : shape[1] // 16] *= 6  # outliers
        importances = torch.rand(shape[1], generator=generator).square_() if is_weighed else None
        return {
            "weight": weight.to(device, dtype),
            "importances": importances if importances is None else importances.to(device),
            "bits": bits,
            "group": GROUP,
            "run": RUN,
            "has_offsets": has_offsets,
        }

    return build

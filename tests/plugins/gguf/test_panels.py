"""How the native library lays out what a file's blocks hold: scales by panels, values by words."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from dovetail_kernels.bit_fields import OP
from dovetail_kernels.cpu.library import library, missing_reason, needed_library
from dovetail_kernels.gemm.native import Packed
from dovetail_kernels.gemm.native_pack import _panels, spread_over
from dovetail_plugins.gguf.blocks.integers import LAYOUTS
from dovetail_plugins.gguf.blocks.types import BY_NAME
from dovetail_plugins.gguf.blocks.weight import weight_of

pytestmark = pytest.mark.skipif(library() is None, reason=missing_reason() or "")

DTYPES = (torch.int8, torch.float16, torch.float32, torch.float8_e4m3fn)
TYPES = ("Q4_0", "Q4_K", "Q6_K", "Q2_K", "IQ4_XS", "NVFP4", "Q5_K", "Q8_0")


def sources(outputs: int, columns: int, *, is_gated: bool) -> torch.Tensor:
    """Return the output of each panel's column, -1 for none. Shapes: [panels, columns]"""
    size, width = (outputs // 2, columns // 2) if is_gated else (outputs, columns)
    count = -(-size // width)
    numbers = torch.arange(count * width).view(count, width)
    numbers = numbers.masked_fill(numbers >= size, -1)
    up = torch.where(numbers < 0, numbers, numbers + size)
    return torch.cat([numbers, up], dim=1) if is_gated else numbers


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("outputs", [64, 70, 6])
@pytest.mark.parametrize("is_gated", [False, True])
@pytest.mark.parametrize(("groups", "step"), [(None, 1), (3, 2), (130, 2), (136, 2), (136, 1)])
def test_scales_lie_by_panels(
    dtype: torch.dtype, outputs: int, is_gated: bool, groups: int | None, step: int
) -> None:
    size = (outputs,) if groups is None else (outputs, step * groups)
    numbers = torch.randint(-100, 100, size).float().to(dtype)
    numbers = numbers if groups is None else numbers[:, ::step]  # a view, with gaps by step 2
    native = needed_library()
    columns = native.panel_outputs()
    found = spread_over(numbers, _panels(outputs, columns, is_gated), is_gated, native)
    assert found is not None and found.dtype == dtype
    place = sources(outputs, columns, is_gated=is_gated)
    wanted = numbers.float()[place.clamp(min=0)]
    wanted[place < 0] = 0
    assert torch.equal(found.float(), wanted if groups is None else wanted.mT)


@pytest.mark.parametrize("type_name", TYPES)
@pytest.mark.parametrize(("outputs", "is_gated"), [(64, False), (70, False), (102, True)])
@pytest.mark.parametrize("inputs", [256, 768])
def test_values_of_blocks_are_packed_like_bytes(
    type_name: str, outputs: int, is_gated: bool, inputs: int
) -> None:
    known = BY_NAME[type_name]
    size = (outputs, inputs // known.values * known.block_bytes)
    blocks = torch.randint(0, 60, size, dtype=torch.uint8)  # numbers in them are finite
    weight = weight_of(type_name, blocks)
    assert weight.fields is not None
    values = OP.pick("cpu", torch.uint8)(
        blocks=blocks.view(-1, known.block_bytes), planes=LAYOUTS[type_name].planes
    )
    values = values.view(outputs, inputs)
    values = values.view(torch.int8) if type_name == "Q8_0" else values
    for format in {weight.format, weight.format.removesuffix("_float32") + "_int8"}:
        if format == "table4_int8":
            continue
        direct = Packed(replace(weight, format=format), is_gated=is_gated)
        apart = Packed(
            replace(weight, format=format, values=values, fields=None), is_gated=is_gated
        )
        assert torch.equal(direct.data, apart.data)

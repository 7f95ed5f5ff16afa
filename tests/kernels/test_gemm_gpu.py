"""Weights in the layout of the GPU's products: nothing lost, nothing kept twice, sorted pairs.

Packing needs no Triton; sums that do not depend on the batch are checked by the interpreter, in a
process of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dovetail_kernels.gemm.cases import make_weight
from dovetail_kernels.gemm.gpu import GpuPacked, is_packed, pack
from dovetail_kernels.gemm.panels import KINDS
from dovetail_kernels.gemm.stacked import stack
from dovetail_kernels.gemm.tiles import parts_of
from dovetail_kernels.gemm.weight import FORMATS
from dovetail_kernels.gpu import VARIABLE

KERNELS = Path(__file__).parents[2] / "kernels"
BITS = {"float8": 8, "table4": 4, "e2m1": 4} | {f"int{n}": n for n in (2, 3, 4, 5, 6, 8)}
SLACK = 1.02


@pytest.mark.parametrize("options", [{}, {"group": 64, "is_symmetric": False}, {"group": 24}])
@pytest.mark.parametrize("format", [f for f in FORMATS if is_packed(f)])
def test_rows_are_those_of_the_weight(format: str, options: dict[str, int]) -> None:
    weight = make_weight(format, 40, 200, **options)  # type: ignore[arg-type]
    index = torch.tensor([3, 0, 39, 3])
    torch.testing.assert_close(pack(weight).rows(index), weight.rows(index), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("format", list(KINDS))
def test_memory_is_that_of_the_codes_and_scales(format: str) -> None:
    weight = make_weight(format, 256, 1024)
    packed = pack(weight)
    assert weight.scales is not None
    needed = 256 * 1024 * BITS[packed.kind] // 8 + weight.scales.nbytes
    assert packed.num_bytes <= SLACK * needed


def test_parts_depend_on_the_weight_alone() -> None:
    for outputs, panels in ((4096, 32), (1024, 64), (28672, 32), (64, 7)):
        assert len({parts_of(rows, outputs, panels) for rows in range(1, 65)}) == 1
        assert parts_of(65, outputs, panels) == 1


def test_experts_of_two_kinds_are_not_stacked() -> None:
    one, other = (pack(make_weight("int4", 16, 128, group=group)) for group in (32, 64))
    assert stack([one, other]) is None
    both = stack([one, one])
    assert isinstance(both, GpuPacked)
    assert both.num_experts == 2
    assert both.values.shape == (2, *one.values.shape)


ALONE = """
import torch
from dovetail_kernels.gemm.cases import make_weight
from dovetail_kernels.gemm.gpu import pack
from dovetail_kernels.moe.triton import sort

x = torch.randn(20, 1100, generator=torch.Generator().manual_seed(0))
for format in ("int4", "int8"):
    weight = pack(make_weight(format, 40, 1100))
    together = weight(x)
    for row in (0, 19):
        assert torch.equal(weight(x[row : row + 1])[0], together[row]), format

experts = torch.randint(0, 9, (50, 3), generator=torch.Generator().manual_seed(1))
experts[experts == 4] = 5
pair_of, expert_of = sort(experts, 16, 9)
held = pair_of[pair_of < 150]
assert sorted(held.tolist()) == list(range(150))
for block, expert in zip(pair_of.view(-1, 16), expert_of.tolist(), strict=True):
    own = experts.flatten()[block[block < 150].long()]
    assert (own == expert).all() and (expert >= 0 or not len(own))
assert 4 not in expert_of.tolist()
"""


def test_a_row_alone_is_the_row_in_a_batch() -> None:
    pytest.importorskip("triton")
    env = os.environ | {"PYTHONPATH": str(KERNELS), "OMP_NUM_THREADS": "1", VARIABLE: "1"}
    done = subprocess.run(
        [sys.executable, "-c", ALONE], env=env, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr[-3000:]

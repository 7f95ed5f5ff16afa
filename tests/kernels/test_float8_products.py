"""Products of two 8-bit floats, interpreted: what torch gives for activations it rounded itself.

A process of its own: whether kernels are interpreted is decided when Triton is imported.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dovetail_kernels.gpu import VARIABLE

KERNELS = Path(__file__).parents[2] / "kernels"
SCRIPT = """
import torch
from dovetail_kernels.gemm.cases import make_weight
from dovetail_kernels.gemm.gpu import pack
from dovetail_kernels.gemm.stacked import stack
from dovetail_kernels.moe.triton import run

def rounded(x):
    scale = x.abs().amax(1, keepdim=True) / 448
    return (x / scale).to(torch.float8_e4m3fn).float() * scale

def off(one, other):
    return ((one - other).norm() / other.norm()).item()

def packed(weight):
    return pack(weight, has_float8_activations=True)

x = torch.randn(70, 300, generator=torch.Generator().manual_seed(0))
for options in ({}, {"group": 128}):
    weight = make_weight("float8", 40, 300, **options)
    plain, wanted = (one @ weight.dequantize().t() for one in (x, rounded(x)))
    for rows in (5, 70):
        found = packed(weight)(x[:rows])
        assert off(found, wanted[:rows]) < 2e-4, (options, rows)
        assert off(found, plain[:rows]) > 5e-3, (options, rows)

first, second = make_weight("float8", 64, 300), make_weight("float8", 300, 64)
picked = torch.tensor([[0, 1], [1, 0], [1, 1]])
shares = torch.tensor([[0.5, 0.25], [1.0, 0.0], [0.5, 0.5]])
packs = [stack([packed(one)] * 2) for one in (first, second)]
found = run(x[:3], *packs, shares, picked, "relu", is_gated=False)
inner = (rounded(x[:3]) @ first.dequantize().t()).relu()
wanted = rounded(inner) @ second.dequantize().t() * shares.sum(1, keepdim=True)
assert off(found, wanted) < 2e-4
"""


def test_activations_are_rounded_as_torch_rounds() -> None:
    pytest.importorskip("triton")
    env = {VARIABLE: "1", "PYTHONPATH": str(KERNELS), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env=os.environ | env, capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]

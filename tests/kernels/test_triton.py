"""Triton's kernels against their definitions, interpreted on CPU tensors, and compiled for a GPU.

A process of its own for each op: whether kernels are interpreted is decided when Triton is
imported. `make test-gpu` runs all cases on a GPU.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dovetail_kernels import all_ops
from dovetail_kernels.gpu import TRITON, VARIABLE

KERNELS = Path(__file__).parents[2] / "kernels"
WITH_TRITON = [op.name for op in all_ops() if any(i.name == TRITON for i in op.implementations)]


def run(*arguments: str, **variables: str) -> str:
    env = os.environ | {"PYTHONPATH": str(KERNELS), "OMP_NUM_THREADS": "1"} | variables
    done = subprocess.run(
        [sys.executable, "-m", "dovetail_kernels", *arguments],
        env=env, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("op_name", WITH_TRITON)
def test_interpreted_kernels_do_what_is_defined(op_name: str) -> None:
    pytest.importorskip("triton")
    interpreted = {VARIABLE: "1"}
    support = run("support", "--op", op_name, **interpreted)
    assert f"{TRITON}: ok" in support
    assert " 0 failed" in run("test", "--op", op_name, **interpreted)


@pytest.mark.parametrize("op_name", WITH_TRITON)
def test_kernels_compile_for_a_gpu_that_is_not_here(op_name: str) -> None:
    pytest.importorskip("triton")
    told = run("compile", "--op", op_name, "--most", "3", **{VARIABLE: "0"})
    assert " registers" in told
    assert ", 0 failed" in told


def test_without_a_gpu_they_say_why_not() -> None:
    pytest.importorskip("triton")
    told = run("support", "--op", "rms_norm", **{VARIABLE: "0", "CUDA_VISIBLE_DEVICES": ""})
    assert f"{TRITON}: torch finds no CUDA device" in told

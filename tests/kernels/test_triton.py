"""Triton's kernels against their definitions, interpreted on CPU tensors, and compiled for a GPU.

A process of its own: whether kernels are interpreted is decided when Triton is
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
from support.samples import sample_of

KERNELS = Path(__file__).parents[2] / "kernels"
WITH_TRITON = [op.name for op in all_ops() if any(i.name == TRITON for i in op.implementations)]


def run(*arguments: str, **variables: str) -> str:
    env = os.environ | {"PYTHONPATH": str(KERNELS), "OMP_NUM_THREADS": "1"} | variables
    done = subprocess.run(
        [sys.executable, "-m", "dovetail_kernels", *arguments],
        env=env, capture_output=True, text=True, timeout=570,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_interpreted_kernels_do_what_is_defined() -> None:
    pytest.importorskip("triton")
    asked = [word for name in WITH_TRITON for word in ("--op", name)]
    support = run("support", *asked, **{VARIABLE: "1"}).splitlines()
    ok = {line.split()[0] for line in support if f"{TRITON}: ok" in line}
    assert ok == set(WITH_TRITON)
    every = str(sample_of(1, 11))  # types alternate by two, three or four
    told = run("test", *asked, "--implementation", TRITON, "--every", every, **{VARIABLE: "1"})
    assert " 0 failed" in told and not told.startswith("0 passed")


def test_kernels_compile_for_a_gpu_that_is_not_here() -> None:
    pytest.importorskip("triton")
    asked = [word for name in WITH_TRITON for word in ("--op", name)]
    told = run("compile", *asked, "--most", str(sample_of(4, 1)), **{VARIABLE: "0"}).splitlines()
    compiled = {line.split()[0] for line in told if " registers" in line}
    assert compiled == set(WITH_TRITON)
    assert ", 0 failed" in told[-1]


def test_without_a_gpu_they_say_why_not() -> None:
    pytest.importorskip("triton")
    told = run("support", "--op", "rms_norm", **{VARIABLE: "0", "CUDA_VISIBLE_DEVICES": ""})
    assert f"{TRITON}: torch finds no CUDA device" in told

"""Holding a process to a lower instruction set: every library that computes says it is held."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from dovetail_kernels.cpu import recipe
from dovetail_kernels.cpu.library import library
from support import isa

ASK = """
import torch
from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__
from dovetail_kernels.cpu import recipe
from dovetail_kernels.cpu.library import library

print("kernels", library().isa)
print("torch", torch.backends.cpu.get_cpu_capability())
print("numpy", [name for name in __cpu_dispatch__ if __cpu_features__[name]])
torch.randn(64, 64) @ torch.randn(64, 64)
if torch.ops.mkldnn._is_mkldnn_bf16_supported():
    print("oneDNN has products of bfloat16")
"""
SAID = {
    "avx2": ("kernels avx2", "torch AVX2", "(Intel(R) AVX2) enabled"),
    "base": ("kernels base", "torch DEFAULT", "(Intel(R) SSE4.2) enabled"),
}
MKL = 2
"""Where in a row of `SAID` MKL's word is; only Intel's processors let it be held."""
OTHER_MAKERS = "for Intel(R) 64 architecture Intel(R) Architecture processors"
"""What MKL says of a processor whose maker it does not know."""
NATIVE = library()


def _compiled() -> list[str]:
    """Return the lower sets that are compiled here: another one would take minutes."""
    return [name for name in isa.lower_sets() if name in recipe.source_sets()]


def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, isa.__file__, *arguments],
        env=os.environ | variables, capture_output=True, text=True, timeout=120,
    )  # fmt: skip


@pytest.mark.parametrize("name", [] if NATIVE is None else _compiled())
def test_every_library_is_held(name: str) -> None:
    done = run(name, sys.executable, "-c", ASK, MKL_VERBOSE="1")
    assert done.returncode == 0, done.stderr
    for place, word in enumerate(SAID[name]):
        is_held = any(one in done.stdout for one in (word, OTHER_MAKERS))
        assert word in done.stdout or (
            place == MKL and (is_held or "MKL_VERBOSE" not in done.stdout)
        )
    numpy_has = next(line for line in done.stdout.splitlines() if line.startswith("numpy"))
    assert "512" not in numpy_has and "X86_V4" not in numpy_has
    assert ("X86_V3" in numpy_has or "AVX2" in numpy_has) == (name == "avx2")
    assert "oneDNN has" not in done.stdout


@pytest.mark.skipif(NATIVE is None, reason="needs the native library")
def test_lower_is_each_of_them_and_the_first_failure_ends_it() -> None:
    told = [f"limited to {name}:" for name in isa.lower_sets()]
    if not told:
        assert "nothing to hold" in run("lower", "false").stdout
        return
    assert run("lower", "true").stdout.splitlines() == told
    failed = run("lower", sys.executable, "-c", "raise SystemExit(3)")
    assert (failed.returncode, failed.stdout.splitlines()) == (3, told[:1])


def test_what_cannot_be_held_is_refused() -> None:
    assert "invalid choice: 'neon'" in run("neon", "true").stderr
    assert "give the command" in run("avx2").stderr
    unknown = run("lower", "true", DOVETAIL_CPU_ISA="none")
    assert unknown.returncode == 2
    assert "DOVETAIL_CPU_ISA=none" in unknown.stderr

"""Test files that are scripts as well: whether Triton interprets kernels is decided when it is
imported, so what an interpreter says is found out in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from dovetail_kernels.gpu import VARIABLE

TESTS = Path(__file__).parents[1]
FOLDERS = os.pathsep.join(str(folder) for folder in (TESTS.parent / "kernels", TESTS))
AS_WANTED = "as wanted"
"""The last line of a script that found nothing wrong."""


def verify_interpreted(file: str, *, limit_s: float) -> None:
    """Run a test file as a script whose kernels are interpreted, on one thread; check that it ends
    well and says so."""
    env = os.environ | {"PYTHONPATH": FOLDERS, "OMP_NUM_THREADS": "1", VARIABLE: "1"}
    done = subprocess.run(
        [sys.executable, file], env=env, capture_output=True, text=True, timeout=limit_s
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == AS_WANTED

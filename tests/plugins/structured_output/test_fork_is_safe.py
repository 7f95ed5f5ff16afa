"""The process that forks for each constraint has one thread, whichever backends it has loaded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("dovetail_plugins")

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = """
from pathlib import Path
import dovetail.structured_output.compile_worker as worker
from dovetail.config.config import Config
from dovetail.config.resolve import resolve
from dovetail.structured_output.cache import ConstraintCache
from dovetail.structured_output.first_token_probe import FirstTokenProbe
spec = resolve(Config.from_fields({})).run.structured_output
table = ConstraintCache(spec)
FirstTokenProbe(table.vocabulary)
for backend in spec.backends:
    worker._load_backend(table, backend.name)
status = Path("/proc/self/status").read_text()
print(len(spec.backends), status.partition("Threads:")[2].split()[0])
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc")
def test_one_thread_with_every_backend() -> None:
    pytest.importorskip("llguidance")
    paths = os.pathsep.join(str(ROOT / part) for part in ("core", "plugins", "kernels"))
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=True,
    )
    num_backends, num_threads = map(int, done.stdout.split())
    assert num_backends >= 1
    assert num_threads == 1

"""benchmarks/gpu.py runs from a bare checkout: small, on a CPU, each section in its own process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_a_tiny_run_on_a_cpu(tmp_path: Path) -> None:
    paths = os.pathsep.join(str(ROOT / part) for part in ("core", "plugins", "kernels"))
    words = ["--device", "cpu", "--quick", "--op", "rms_norm", "--only", "ops", "--only", "tiny"]
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "gpu.py"), "--out", str(tmp_path), *words],
        env=os.environ | {"PYTHONPATH": paths, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    results = json.loads((tmp_path / "gpu.json").read_text())
    assert done.returncode == 0, results
    rows = results["ops"]["rows"]
    assert {row["implementation"] for row in rows} >= {"reference"}
    assert all(row["us"] > 0 for row in rows)
    tiny = results["tiny"]
    for part in ("decode 1", "decode 8"):
        assert tiny[part]["tokens_per_s"] > 0 and 0 < tiny[part]["of_floor"] < 2
        assert tiny[part]["device_ms"] <= 2 * tiny[part]["step_ms"]
    assert tiny["prefill"]["tflop_per_s"] > 0
    assert "rms_norm" in (tmp_path / "gpu.md").read_text()

"""Memory the CPU worker offers, and what an executor's process holds after shutdown."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from dovetail.interfaces.plugin import NoOptions
from dovetail.testing.tiny import tiny_run
from dovetail_plugins.workers import cpu
from dovetail_plugins.workers.cpu import CpuWorker
from dovetail_plugins.workers.cuda import CudaWorker


def write_group(folder: Path, limit: str, used: int, cached: int) -> tuple[str, str, str]:
    (folder / "max").write_text(limit)
    (folder / "current").write_text(str(used))
    (folder / "stat").write_text(f"anon 1\nactive_file 5\ninactive_file {cached}\n")
    return tuple(str(folder / name) for name in ("max", "current", "stat"))  # type: ignore[return-value]


def test_a_container_limits_what_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = CpuWorker(NoOptions(), tiny_run())
    monkeypatch.setattr(cpu, "CGROUP_FILES", ())
    unlimited = worker.free_bytes()
    assert 0 < unlimited < psutil.virtual_memory().total
    group = write_group(tmp_path, "3000000000", used=2_000_000_000, cached=500_000_000)
    monkeypatch.setattr(cpu, "CGROUP_FILES", (group,))
    assert worker.free_bytes() <= 1_500_000_005 - cpu.MARGIN_BYTES


def test_no_limit_is_no_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group = write_group(tmp_path, "max", used=5, cached=0)
    monkeypatch.setattr(cpu, "CGROUP_FILES", (group, ("/nowhere/a", "/nowhere/b", "/nowhere/c")))
    assert cpu.container_rooms() == []


def test_cuda_says_why_not() -> None:
    assert CudaWorker.why_not("cpu") == ["runs on cuda, not on cpu"]
    reason = CudaWorker.unavailable_reason()
    assert reason is None or "Fix:" in reason

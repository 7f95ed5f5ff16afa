"""benchmarks/peers/probe.py ends in bounded time, whatever a figure costs."""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def probe(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the module."""
    monkeypatch.syspath_prepend(str(ROOT))
    return importlib.import_module("benchmarks.peers.probe")


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch, probe: Any) -> Callable[[float], Any]:
    """Return a maker of calls whose time goes with their size, on a clock of their own."""
    now = [0.0]
    monkeypatch.setattr(probe.time, "perf_counter", lambda: now[0])

    def maker(each_s: float, calls: list[int]) -> Any:
        def make(size: int) -> Callable[[], None]:
            def run() -> None:
                calls.append(size)
                now[0] += each_s * size

            return run

        return make

    maker.now = now  # type: ignore[attr-defined]
    return maker


def test_what_is_fast_is_measured_at_the_largest_size(probe: Any, work: Any) -> None:
    calls: list[int] = []
    found = probe.rate(work(1e-3, calls), float, (1, 10, 100), 1.0)
    assert found == pytest.approx(1e3)
    assert calls[:2] == [1, 1] and set(calls[2:]) == {100}


def test_what_is_slow_is_measured_smaller(probe: Any, work: Any) -> None:
    calls: list[int] = []
    assert probe.rate(work(2e-2, calls), float, (1, 10, 100), 1.0) == pytest.approx(50.0)
    assert set(calls[2:]) == {10}
    assert work.now[0] < 2.0


def test_what_does_not_fit_is_skipped_after_one_small_call(probe: Any, work: Any) -> None:
    calls: list[int] = []
    found = probe.rate(work(10.0, calls), float, (1, 10, 100), 1.0)
    assert found == "too slow: one call would take 100.0 s"
    assert calls == [1]


def test_narrow_products_without_a_fast_path_are_no_peak(probe: Any) -> None:
    given = {"read_gb_s": 3e10, "fp32_gflop_s": 1e11, "bf16_gflop_s": 2e9, "int8_gop_s": 3e11}
    lines = list(probe.figures(given.__getitem__))
    told = probe.told(lines, "")
    assert told["fp32_gflop_s"] == 100.0 and told["int8_gop_s"] == 300.0
    assert told["skipped"] == {"bf16_gflop_s": "too slow: torch has no fast product here (2.0)"}


def test_a_process_that_hangs_is_ended_and_what_it_said_is_kept(probe: Any) -> None:
    code = "import time; print('{\"read_gb_s\": 30.5}', flush=True); time.sleep(60)"
    start_s = time.perf_counter()
    told = probe.probe(1, [sys.executable, "-c", code], limit_s=3.0)
    assert time.perf_counter() - start_s < 30
    assert told["read_gb_s"] == 30.5
    assert told["skipped"]["int8_gop_s"] == "too slow: not reached in 3 s"
    assert set(told) == {"read_gb_s", "skipped"}


def test_a_process_that_dies_is_told(probe: Any) -> None:
    told = probe.probe(1, [sys.executable, "-c", "raise SystemExit(3)"])
    assert set(told["skipped"]) == set(probe.FIGURES)
    assert told["skipped"]["read_gb_s"] == "its process ended before it"


@pytest.mark.full_only
def test_the_real_probe_answers(probe: Any) -> None:
    told = probe.probe(1)
    assert set(told) | set(told.get("skipped", ())) == {
        *probe.FIGURES,
        *("skipped",) * bool(told.get("skipped")),
    }
    assert told.get("fp32_gflop_s", 1.0) > 0

"""The time line of a start: phases follow the clock, parts end with the phase they are of."""

from __future__ import annotations

import time

import pytest

from dovetail.server.launch.startup_timer import StartupTimer


def test_phases_have_a_beginning_and_a_length() -> None:
    timer = StartupTimer()
    assert timer.began_s["imports"] == 0.0 < timer.durations_s["imports"]
    with timer.time("engine"):
        time.sleep(0.05)
    assert timer.began_s["engine"] >= timer.durations_s["imports"]
    assert timer.durations_s["engine"] >= 0.05
    end_s = timer.began_s["engine"] + timer.durations_s["engine"]
    timer.note_parts("engine", [("imports", 0.01), ("weights", 0.02)])
    assert timer.began_s["engine: weights"] == pytest.approx(end_s - 0.02)
    assert timer.began_s["engine: imports"] == pytest.approx(end_s - 0.03)
    assert timer.durations_s["engine: imports"] == 0.01
    assert set(timer.began_s) == set(timer.durations_s)
    assert list(timer.durations_s)[-2:] == ["engine: imports", "engine: weights"]

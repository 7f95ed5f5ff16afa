"""The simulation of benchmarks/routers.py: every request is served, its engine model behaves as the
real scheduler does, and following prefixes pays."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("dovetail_plugins")

ROOT = Path(__file__).resolve().parents[2]
ENGINES, RATE = 4, 1.4


@pytest.fixture
def routers(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the module."""
    monkeypatch.syspath_prepend(str(ROOT))
    return importlib.import_module("benchmarks.routers")


def simulated(routers: Any, name: str, count: int, make: Any = None) -> Any:
    hardware = routers.Hardware()
    engines = [(make or routers.Model)(number, hardware) for number in range(ENGINES)]
    router = routers.made(name, ENGINES, cache_tokens=hardware.cache_tokens)
    load = routers.LOADS["tools"]
    return routers.simulate(router, load, engines, RATE * ENGINES, count)


def test_every_request_is_served_and_prefixes_pay(routers: Any) -> None:
    count = 1000
    results = {name: simulated(routers, name, count) for name in routers.ROUTERS}
    for result in results.values():
        assert result.num_first == count
        assert 0 < result.hit_share < result.possible_share + 0.05
        assert result.busiest < 1.2
    best, others = results.pop("prefix_aware"), results.values()
    assert all(best.hit_share > 1.1 * other.hit_share for other in others)
    assert all(best.mean_s < 0.9 * other.mean_s for other in others)


def test_the_model_of_an_engine_does_what_the_scheduler_does(routers: Any) -> None:
    count = 120
    model = simulated(routers, "prefix_aware", count)
    real = simulated(routers, "prefix_aware", count, routers.ScheduledModel)
    assert real.num_first == model.num_first == count
    assert real.hit_share == pytest.approx(model.hit_share, abs=0.03)
    assert real.mean_s == pytest.approx(model.mean_s, rel=0.1)

"""The way of a chat body through the server is short, and docs/map.md tells it stop by stop."""

from __future__ import annotations

import re
from pathlib import Path

from support.chat_way import Tracer, trace
from support.serving import app_for

MAP = Path(__file__).parents[3] / "docs" / "map.md"
STOP = re.compile(r"^\d+\. `core/dovetail/server/([\w/.]+)`: `(\w+)`", re.MULTILINE)
MAX_STOPS, MAX_CONTAINERS, MAX_NAMES = 15, 7, 45


def way() -> Tracer:
    app, _ = app_for()
    return trace(app)


def test_the_map_tells_the_stops_in_their_order() -> None:
    told = [(file, name) for file, name in STOP.findall(MAP.read_text(encoding="utf-8"))]
    assert len(told) > 10
    stops = iter(way().stops)
    for file, name in told:
        assert any(
            file == at and any(name in function.split(".") for function in functions)
            for at, functions in stops
        ), f"{file}: {name} is not a stop, or comes earlier"


def test_the_way_stays_short() -> None:
    traced = way()
    assert len(traced.stops) <= MAX_STOPS, traced.stops
    assert len(traced.containers) <= MAX_CONTAINERS, sorted(traced.containers)
    assert len(traced.names) <= MAX_NAMES, traced.names
    assert {"SessionPlan", "RenderedPrompt", "Generation"} <= traced.containers

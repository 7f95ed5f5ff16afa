"""/pause and its kin: there with the development flag alone, behind the key, in both dialects."""

from __future__ import annotations

import pytest

from dovetail.engine.messages import Pause, Resume
from support.serving import app_for, send


def test_there_with_the_flag_alone_and_closed() -> None:
    without, _ = app_for()
    app, engine = app_for(enable_dev_endpoints=True, api_key=("k",))
    for method, path in (("POST", "/pause"), ("POST", "/resume"), ("GET", "/is_paused")):
        assert send(without, method, path).status_code == 404
        assert send(app, method, path).status_code == 401
        assert engine.operations == []
    assert send(app, "POST", "/pause", authorization="Bearer k").status_code == 200


def test_what_is_asked_reaches_the_engines() -> None:
    app, engine = app_for(enable_dev_endpoints=True)
    assert send(app, "GET", "/is_paused").json() == {"is_paused": False}
    for query in ("", "?mode=wait&clear_cache=false", "?wait_for_inflight_requests=true"):
        assert send(app, "POST", f"/pause{query}").json() == {"status": "paused"}
    assert send(app, "POST", "/pause?mode=keep").status_code == 200
    assert send(app, "GET", "/is_paused").json() == {"is_paused": True}
    assert send(app, "POST", "/resume").json() == {"status": "resumed"}
    assert send(app, "GET", "/is_paused").json() == {"is_paused": False}
    for mode in ("abort", "retract", "in_place"):
        answer = send(app, "POST", "/pause_generation", {"mode": mode}).json()
        assert answer["status"] == "ok"
    assert send(app, "POST", "/continue_generation", {}).json()["status"] == "ok"
    assert engine.operations == [
        Pause(mode="abort", drops=True),
        Pause(mode="wait"),
        Pause(mode="wait", drops=True),
        Pause(mode="keep", drops=True),
        Resume(),
        Pause(mode="abort", drops=True),
        Pause(mode="keep", drops=True),
        Pause(mode="keep"),
        Resume(),
    ]


@pytest.mark.parametrize(
    "path",
    [
        "/pause?mode=later",
        "/pause?clear_cache=maybe",
        "/pause?mode=wait&timeout=-1",
        "/pause?mode=keep&timeout=1",
    ],
)
def test_what_cannot_be_is_refused(path: str) -> None:
    app, engine = app_for(enable_dev_endpoints=True)
    assert send(app, "POST", path).status_code in (400, 422)
    assert send(app, "POST", "/pause_generation", {"mode": "keep"}).status_code == 400
    assert engine.operations == []

"""/sleep, /wake_up and /is_sleeping: there with the development flag alone, behind the key."""

from __future__ import annotations

import pytest

from support.serving import app_for, send

ROUTES = (("POST", "/sleep"), ("POST", "/wake_up"), ("GET", "/is_sleeping"))


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_there_with_the_flag_alone_and_closed(method: str, path: str) -> None:
    without, _ = app_for()
    assert send(without, method, path).status_code == 404
    app, engine = app_for(enable_dev_endpoints=True, api_key=("k",))
    assert send(app, method, path).status_code == 401
    assert engine.sleep_calls == []
    assert send(app, method, path, authorization="Bearer k").status_code == 200


def test_what_is_asked_reaches_the_engine() -> None:
    app, engine = app_for(enable_dev_endpoints=True)
    for path in ("/sleep", "/wake_up?tags=weights"):
        assert send(app, "POST", path).status_code == 200
        assert send(app, "GET", "/is_sleeping").json() == {"is_sleeping": True}
        assert send(app, "GET", "/ready").status_code == 503
        assert send(app, "GET", "/health").status_code == 200
    assert send(app, "POST", "/wake_up?tags=kv_cache&tags=weights").status_code == 200
    assert send(app, "POST", "/sleep?level=2&mode=wait").status_code == 200
    assert send(app, "POST", "/wake_up").status_code == 200
    assert send(app, "GET", "/is_sleeping").json() == {"is_sleeping": False}
    assert engine.sleep_calls == [
        ("sleep", 1, False),
        ("wake_up", "weights"),
        ("wake_up", "kv_cache", "weights"),
        ("sleep", 2, True),
        ("wake_up",),
    ]


@pytest.mark.parametrize("query", ["level=deep", "mode=keep"])
def test_what_cannot_be_is_refused(query: str) -> None:
    app, engine = app_for(enable_dev_endpoints=True)
    assert send(app, "POST", f"/sleep?{query}").status_code in (400, 422)
    assert engine.sleep_calls == []

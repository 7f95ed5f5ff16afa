"""/reset_prefix_cache and /server_info: there with their flag alone, behind the key."""

from __future__ import annotations

import pytest

from dovetail.errors import EngineDead, Overloaded
from dovetail.testing.fake_async_engine import FakeAsyncEngine, fake_spec
from support.serving import app_for, send

ROUTES = (("POST", "/reset_prefix_cache"), ("GET", "/server_info"))


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_there_with_the_flag_alone_and_closed(method: str, path: str) -> None:
    without, _ = app_for()
    assert send(without, method, path).status_code == 404
    app, engine = app_for(enable_dev_endpoints=True, api_key=("k",))
    assert send(app, method, path).status_code == 401
    assert engine.num_resets == 0
    assert send(app, method, path, authorization="Bearer k").status_code == 200


def test_a_reset_reaches_the_engine_and_its_faults_the_client() -> None:
    app, engine = app_for(enable_dev_endpoints=True)
    assert send(app, "POST", "/reset_prefix_cache").status_code == 200
    assert engine.num_resets == 1
    for fault in (EngineDead("it is gone."), Overloaded("no answer within 10 s.")):
        engine.reset_fault = fault
        answer = send(app, "POST", "/reset_prefix_cache")
        assert answer.status_code == 503
        assert fault.what in answer.json()["error"]["message"]


def test_server_info_tells_settings_and_no_secret() -> None:
    spec = fake_spec(max_rows=5)
    worker = type(spec.worker)(
        kind="worker", name="w", target="a:b", options={"api_key": "hunter2", "n": 1}
    )
    engine = FakeAsyncEngine(spec=fake_spec(max_rows=5, worker=worker))
    app, _ = app_for(engine=engine, enable_dev_endpoints=True, api_key=("hunter2",))
    answer = send(app, "GET", "/server_info", authorization="Bearer hunter2")
    assert "hunter2" not in answer.text
    found = answer.json()
    assert found["engine"]["schedule"]["max_rows"] == 5
    assert found["engine"]["worker"]["options"] == {"api_key": "***", "n": 1}
    assert found["frontend"]["api_key"] == "***"
    assert found["frontend"]["enable_dev_endpoints"] is True

"""/engines: there with the development flag alone, behind the key; what cannot be is refused."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from dovetail.engine.client.connection import EngineState
from dovetail_plugins.apis.admin import engines
from dovetail_testing.fakes.async_engine import FakeAsyncEngine, fake_spec
from support.serving import app_for, send


@pytest.fixture(autouse=True)
def _no_news(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "NEWS_S", 0.0)
    monkeypatch.setattr(engines, "CONNECT_S", 0.0)


def state(number: int, **fields: Any) -> EngineState:
    usual = {"reason": None, "asleep": (), "running": 0, "waiting": 0, "heartbeat_age_s": 0.0}
    return EngineState(engine=number, **(usual | fields))


def test_there_with_the_flag_alone_and_closed() -> None:
    without, _ = app_for()
    assert send(without, "GET", "/engines").status_code == 404
    app, engine = app_for(enable_dev_endpoints=True, api_key=("k",))
    for path in ("drain", "remove", "add"):
        assert send(app, "POST", f"/engines/{path}", {"engine": 0}).status_code == 401
    assert engine.operations == []
    engine.engine_states = [state(0), state(1, is_leaving=True, running=2), state(2, reason="x.")]
    answer = send(app, "GET", "/engines", authorization="Bearer k").json()
    assert [one["state"] for one in answer["engines"]] == ["up", "leaving", "dead"]
    engine.engine_states[2] = state(2, reason="it was removed.", is_leaving=True, restarts=1)
    report = send(app, "GET", "/health").json()
    assert (report["status"], report["engines"][2]["state"]) == ("ok", "removed")


@pytest.mark.parametrize(
    ("path", "body", "status", "what"),
    [
        ("drain", {"engine": 7}, 400, "there is no engine 7"),
        ("drain", {"engine": 2}, 409, "has ended: it died"),
        ("remove", {"engine": 0}, 409, "last one"),
        ("add", {"engine": 0}, 409, "is alive"),
        ("add", {"engine": 1}, 409, "about to end"),
        ("drain", {"engine": 0, "timeout": -1}, 400, "timeout"),
        ("drain", {}, 400, "engine"),
    ],
)
def test_what_cannot_be_is_refused(path: str, body: dict[str, Any], status: int, what: str) -> None:
    app, engine = app_for(enable_dev_endpoints=True)
    engine.engine_states = [state(0), state(1, is_leaving=True), state(2, reason="it died.")]
    answer = send(app, "POST", f"/engines/{path}", body)
    assert answer.status_code == status and what in answer.text, answer.text
    assert engine.operations == []


def test_other_machines_start_their_engines_and_sharers_of_experts_stay() -> None:
    plain = fake_spec()
    sharing = structs.replace(plain.run, rank=structs.replace(plain.run.rank, data_size=2))
    for spec, asked, what in (
        (structs.replace(plain, elsewhere=(1,)), "add", "another machine"),
        (structs.replace(plain, run=sharing), "drain", "experts"),
    ):
        engine = FakeAsyncEngine(spec=spec)
        app, _ = app_for(engine=engine, enable_dev_endpoints=True)
        engine.engine_states = [state(0), state(1, reason="gone" if asked == "add" else None)]
        answer = send(app, "POST", f"/engines/{asked}", {"engine": 1})
        assert answer.status_code == 409 and what in answer.text, answer.text

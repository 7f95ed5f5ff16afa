"""/reset_prefix_cache and /server_info: there with their flag alone, behind the key."""

from __future__ import annotations

from typing import Any

import pytest

from dovetail.errors import EngineDead, Overloaded, RequestError
from dovetail.interfaces.executor import WorkerCall
from dovetail_testing.fakes.async_engine import FakeAsyncEngine, fake_spec
from support.serving import app_for, send

HEADER = "x-dovetail-weights-version"
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


def test_a_method_of_the_workers_is_called() -> None:
    without, _ = app_for()
    body: dict[str, Any] = {"method": "weights", "args": [1], "kwargs": {"a": "b"}, "timeout": 2}
    assert send(without, "POST", "/collective_rpc", body).status_code == 404
    app, engine = app_for(enable_dev_endpoints=True, api_key=("k",))
    assert send(app, "POST", "/collective_rpc", body).status_code == 401
    app, engine = app_for(enable_dev_endpoints=True)
    answer = send(app, "POST", "/collective_rpc", {**body, "other": 1})
    assert answer.json() == {"results": [{"rank": r, "method": "weights"} for r in range(2)]}
    assert answer.headers["x-dovetail-ignored-fields"] == "other"
    asked = WorkerCall(method="weights", args=(1,), kwargs={"a": "b"}, timeout_s=2.0)
    assert engine.worker_calls == [asked]
    engine.call_fault = RequestError("rank 1: weights raised ValueError: no luck.", status=500)
    answer = send(app, "POST", "/collective_rpc", body)
    assert answer.status_code == 500
    assert "rank 1: weights raised ValueError" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "change",
    [{"method": "os:system"}, {"method": "_secret"}, {"method": None}, {"timeout": 0}, {"args": 1}],
    ids=str,
)
def test_a_call_that_cannot_be_is_refused(change: dict[str, Any]) -> None:
    """Functions are not called by a name that a client sends."""
    app, engine = app_for(enable_dev_endpoints=True)
    answer = send(app, "POST", "/collective_rpc", {"method": "weights", **change})
    assert answer.status_code in (400, 422)
    assert engine.worker_calls == []


def test_new_weights_are_read_by_all_before_any_uses_them() -> None:
    """A refusal drops what was read; the version is shown from the update on."""
    app, engine = app_for(enable_dev_endpoints=True)
    assert send(app, "GET", "/v1/models").json()["data"][0]["weights_version"] == "default"
    body: dict[str, Any] = {"path": "/new/step 7", "running": "abort", "other": 1}
    answer = send(app, "POST", "/update_weights", body)
    assert answer.json() == {"path": "/new/step 7", "weights_version": "step-7"}
    assert answer.headers["x-dovetail-ignored-fields"] == "other"
    asked = {"path": "/new/step 7", "version": "step-7", "running": "abort"}
    assert [(call.method, call.kwargs) for call in engine.worker_calls] == [
        ("read_weights", asked),
        ("update_weights", asked),
    ]
    assert send(app, "GET", "/v1/models").json()["data"][0]["weights_version"] == "step-7"
    assert send(app, "GET", "/server_info").json()["weights"] == asked
    sglang = {"model_path": "/new/b", "weight_version": "8", "load_format": None}
    answer = send(app, "POST", "/update_weights_from_disk", sglang)
    assert answer.json()["success"] is True
    assert engine.worker_calls[-1].kwargs == {"path": "/new/b", "version": "8", "running": "keep"}
    assert send(app, "POST", "/v1/completions", {"prompt": "a"}).headers[HEADER] == "8"
    assert HEADER not in send(app, "POST", "/v1/completions", {"prompt": 1.5}).headers
    for wrong in (
        {},
        {"path": ""},
        {**body, "running": "recompute"},
        {**body, "weights_version": "a b"},
    ):
        assert send(app, "POST", "/update_weights", wrong).status_code in (400, 422)
    engine.call_fault = RequestError("rank 1: /new/c has no weights.", where="path")
    answer = send(app, "POST", "/update_weights", {"path": "/new/c"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "path")


def test_weights_of_a_group_are_announced_and_memory_has_a_key() -> None:
    """A request that cannot be is refused before any rank waits for a trainer."""
    app, engine = app_for(enable_dev_endpoints=True)
    group = {"master_address": "here", "master_port": 1, "world_size": 2}
    tensors = {"names": ["a", "b"], "dtypes": ["float32"] * 2, "shapes": [[2, 3], []]}
    for path, body, param in (
        ("init_weights_update_group", group, "world_size"),  # there are two ranks and the trainer
        ("init_weights_update_group", {**group, "backend": "mpi"}, "backend"),
        ("update_weights_from_distributed", tensors, "group_name"),
        ("update_weights_from_distributed", {**tensors, "names": ["a"]}, "names"),
        ("update_weights_from_distributed", {**tensors, "names": ["a", "a"]}, "names"),
        ("update_weights_from_distributed", {**tensors, "dtypes": ["float32", "float"]}, "b"),
        ("update_weights_from_distributed", {**tensors, "shapes": [[-1], []]}, "shapes[0][0]"),
        ("update_weights", {"shared_memory": "../x", "key": "k"}, "shared_memory"),
        ("update_weights", {"shared_memory": "x"}, None),
        ("update_weights", {"path": "/x", "key": "k"}, None),
        ("update_weights", {"path": "/x", "shared_memory": "x", "key": "k"}, None),
    ):
        answer = send(app, "POST", f"/{path}", body)
        assert answer.status_code in (400, 409), answer.text
        assert answer.json()["error"]["param"] == param, answer.text
    assert {call.method for call in engine.worker_calls} <= {"weight_groups"}
    body = {"shared_memory": "x", "key": "k"}
    answer = send(app, "POST", "/update_weights", body)
    assert answer.json() == {"path": "/dev/shm/x", "weights_version": "x"}
    asked = {"path": "/dev/shm/x", "version": "x", "running": "keep", "key": "k"}
    assert engine.worker_calls[-1].kwargs == asked
    assert send(app, "GET", "/get_world_size").json() == {"world_size": 2}


def test_a_server_without_a_supervisor_is_not_replaced() -> None:
    app, _ = app_for(enable_dev_endpoints=True)
    for method in ("GET", "POST"):
        answer = send(app, method, "/deploy")
        assert (answer.status_code, "dovetail supervise" in answer.text) == (409, True)


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

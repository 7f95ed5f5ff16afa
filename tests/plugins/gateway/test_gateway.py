"""The gateway over fake models: who answers, what passes through, who waits, who leaves memory."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from dovetail_plugins.gateway import fleet as fleet_module
from dovetail_plugins.gateway.fleet import leaving_first
from dovetail_plugins.gateway.model import ModelState
from support.fake_models import SIZE, Rig
from support.serving import call_asgi

Client = httpx.AsyncClient
PATH = "/v1/completions"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the fleet look at its models more often than it does otherwise."""
    monkeypatch.setattr(fleet_module, "WATCH_PERIOD_S", 0.005)
    monkeypatch.setattr(fleet_module, "LOOK_PERIOD_S", 0.005)
    monkeypatch.setattr(fleet_module, "SETTLED_S", 0.0)


def within(rig: Rig, work: Callable[[Client], Awaitable[Any]]) -> Any:
    """Return what `work` returns, given a client of the rig."""

    async def main() -> Any:
        async with rig.client() as client:
            return await work(client)

    return asyncio.run(main())


async def by(client: Client, **body: Any) -> Any:
    """Return the name of the model that answered a completion."""
    answer = await client.post(PATH, json={"prompt": "hi"} | body)
    return answer.json().get("by", answer)


async def until(is_so: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 5
    while not is_so():
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.002)


def test_requests_reach_the_model_that_they_name() -> None:
    rig = Rig("a", "b,b2")

    async def work(client: Client) -> None:
        assert await by(client, model="a") == "a"
        assert await by(client, model="b") == "b"
        assert await by(client, model="b2") == "b"
        assert await by(client) == "a"  # as one server takes its own
        assert await by(client, model=None) == "a"
        assert (await client.get("/tokenizer_info?model=b")).json()["by"] == "b"
        files = {"file": ("f", b"x"), "model": (None, "b")}
        assert (await client.post("/v1/files", files=files)).json()["by"] == "b"
        broken = await client.post(PATH, content=b'{"model": "b"')
        assert broken.json()["by"] == "a"  # whose server says what is wrong with it
        assert (await client.get("/v1/responses/resp_b")).json() == {"by": "b"}
        assert (await client.get("/v1/responses/resp_c")).status_code == 404
        for path in ("/completion", "/infill", "/tokenize", "/embedding", "/apply-template"):
            assert (await client.post(path, json={"prompt": "hi"})).json()["by"] == "a"
            assert (await client.post(path, json={"model": "b"})).json()["by"] == "b"
        assert (await client.post("/lora-adapters", json=[{"id": 0}])).json()["by"] == "a"
        for path in ("/props", "/slots", "/lora-adapters"):
            assert (await client.get(path)).json()["by"] == "a"
            assert (await client.get(f"{path}?model=b")).json()["by"] == "b"
        assert (await client.get("/v1/health")).json()["status"] == "ok"

    within(rig, work)
    assert rig.names_started() == ["a", "b"]


def test_an_unknown_model_is_refused_in_the_dialect_of_the_path() -> None:
    async def work(client: Client) -> None:
        answer = await client.post(PATH, json={"model": "c"})
        assert answer.status_code == 404
        assert answer.json()["error"]["code"] == "model_not_found"
        assert "a, b" in answer.json()["error"]["message"]
        answer = await client.post("/v1/messages", json={"model": "c"})
        assert (answer.status_code, answer.json()["type"]) == (404, "error")
        assert (await client.get("/v1/models/c")).status_code == 404

    rig = Rig("a", "b")
    within(rig, work)
    assert rig.started == []


def test_what_the_gateway_keeps_and_what_it_hands_on() -> None:
    rig = Rig("a", "b", frontend={"api_key": ("key",), "max_body_bytes": 2048})

    async def work(client: Client) -> None:
        assert (await client.post(PATH, json={})).status_code == 401
        assert (await client.get("/health")).status_code == 200
        key = {"authorization": "Bearer key", "x-request-id": "mine", "origin": "http://x.test"}
        big = await client.post(PATH, json={"prompt": "x" * 3000}, headers=key)
        assert big.status_code == 413
        assert (await client.post(PATH + "?q=%2F", json={}, headers=key)).status_code == 200
        assert (await client.post("/sleep", headers=key)).status_code == 404

    within(rig, work)
    (server,) = rig.started
    assert ("POST", PATH + "?q=%2F") in server.calls
    assert "x-request-id: mine" in server.heads[-1]
    assert "x.test" not in server.heads[-1]  # else its own rules for origins would answer
    assert all(path != "/sleep" for _, path in server.calls)


def test_the_page_needs_no_model_and_settings_are_not_told_to_everybody() -> None:
    async def told(host: str, **frontend: Any) -> tuple[int, ...]:
        rig = Rig("a", "b", frontend={"host": host} | frontend)
        async with rig.client() as client:
            codes = [(await client.get(path)).status_code for path in ("/", "/ui/app.js")]
            assert rig.started == []
            return (*codes, (await client.get("/settings")).status_code)

    assert asyncio.run(told("127.0.0.1", allowed_hosts=("test",))) == (200, 200, 200)
    assert asyncio.run(told("0.0.0.0")) == (200, 200, 403)
    assert asyncio.run(told("0.0.0.0", enable_dev_endpoints=True)) == (200, 200, 200)
    assert asyncio.run(told("0.0.0.0", api_key=("k",))) == (200, 200, 401)


def test_a_stream_passes_as_it_comes_and_ends_with_its_client() -> None:
    rig = Rig("a", "b")

    async def work(client: Client) -> None:
        got = await call_asgi(rig.app, PATH, {"model": "b", "stream": True}, leaves_after=1)
        assert got == [b"data: 1\n\n"]  # while the model's server holds the rest back
        server = rig.started[0]
        await until(lambda: server.num_left == 1)
        assert rig.models[1].num_running == 0
        server.gate.set()
        answer = await client.post(PATH, json={"model": "b", "stream": True})
        assert answer.text == "data: 1\n\ndata: [DONE]\n\n"

    within(rig, work)


def test_requests_wait_for_a_load_within_a_bound() -> None:
    rig = Rig("a", "b", wait_s=0.1)
    rig.holds_starts = True

    async def work(client: Client) -> None:
        answer = await client.post(PATH, json={"model": "a"})
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
        assert "was not loaded within 0.1 s" in answer.json()["error"]["message"]
        asked = [asyncio.ensure_future(by(client, model="a")) for _ in range(3)]
        await until(lambda: rig.models[0].num_waiting == 3)
        states = [one["state"] for one in (await client.get("/v1/models")).json()["data"]]
        assert states == ["loading", "unloaded"]
        rig.started[0].may_start.set()
        assert await asyncio.gather(*asked) == ["a", "a", "a"]

    within(rig, work)
    assert rig.names_started() == ["a"]  # which those that had given up had begun to load


def test_the_model_unused_for_longest_makes_room() -> None:
    rig = Rig("a", "b", "c", limit=2 * SIZE)

    async def work(client: Client) -> None:
        for name in ("a", "b", "a", "c"):
            assert await by(client, model=name) == name
        assert [str(model.state) for model in rig.models] == ["loaded", "unloaded", "loaded"]
        text = (await client.get("/metrics")).text
        assert 'dovetail:gateway_unloads_total{model_name="b",why="room"} 1.0' in text

    within(rig, work)


def test_what_never_fits_unloads_nobody() -> None:
    rig = Rig("a", "b", limit=2 * SIZE, sizes={"b": 3 * SIZE})

    async def work(client: Client) -> None:
        assert await by(client, model="a") == "a"
        answer = await client.post(PATH, json={"model": "b"})
        assert answer.status_code == 503
        assert 'the model "b" needs' in answer.json()["error"]["message"]
        assert rig.models[0].state is ModelState.LOADED

    within(rig, work)


def test_requests_in_flight_are_not_cut_and_none_waits_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fleet_module, "BUSY_TURN_S", 0.02)
    rig = Rig("a", "b", limit=SIZE)

    async def work(client: Client) -> None:
        stream = asyncio.ensure_future(client.post(PATH, json={"model": "a", "stream": True}))
        await until(lambda: rig.models[0].num_running == 1)
        other = asyncio.ensure_future(by(client, model="b"))
        await until(lambda: rig.models[0].state is ModelState.LEAVING)
        late = asyncio.ensure_future(by(client, model="a"))  # comes after b's turn
        await asyncio.sleep(0.02)
        assert not other.done()
        rig.started[0].gate.set()
        assert (await stream).text.endswith("[DONE]\n\n")
        assert await other == "b"
        assert await late == "a"

    within(rig, work)
    assert rig.names_started() == ["a", "b", "a"]


def test_idle_models_are_unloaded_and_come_back() -> None:
    rig = Rig("a", "b", idle_after_s=0.03)

    async def work(client: Client) -> None:
        assert await by(client, model="a") == "a"
        await until(lambda: rig.models[0].state is ModelState.UNLOADED)
        assert await by(client, model="a") == "a"

    within(rig, work)
    assert rig.names_started() == ["a", "a"]
    assert rig.started[0].status == 0


def test_idle_models_sleep_and_wake_up() -> None:
    rig = Rig("a", "b", idle_after_s=0.03, sleep_level=2)

    async def work(client: Client) -> None:
        assert await by(client, model="a") == "a"
        await until(lambda: rig.models[0].state is ModelState.ASLEEP)
        assert (await client.get("/health")).json()["models"][0]["state"] == "asleep"
        assert await by(client, model="a") == "a"

    within(rig, work)
    (server,) = rig.started
    assert ("POST", "/sleep?level=2&mode=wait") in server.calls
    assert ("POST", "/wake_up") in server.calls


def test_a_death_ends_its_own_requests_and_no_others() -> None:
    rig = Rig("a", "b")

    async def work(client: Client) -> None:
        assert await by(client, model="a") == "a"
        stream = asyncio.ensure_future(client.post(PATH, json={"model": "b", "stream": True}))
        await until(lambda: rig.models[1].num_running == 1)
        await asyncio.sleep(0.02)
        await rig.started[1].die(-9)
        text = (await stream).text
        assert text.startswith("data: 1\n\n")
        assert "ended within the answer" in text
        assert await by(client, model="a") == "a"
        assert await by(client, model="b") == "b"  # started again

    within(rig, work)
    assert rig.names_started() == ["a", "b", "b"]


def test_repeated_deaths_are_followed_by_pauses() -> None:
    rig = Rig("a", "b")
    rig.fails_starts = True

    async def work(client: Client) -> None:
        for expected in ("could not be loaded", "could not be loaded", "is started again in 1 s"):
            answer = await client.post(PATH, json={"model": "a"})
            assert answer.status_code == 503
            assert expected in answer.json()["error"]["message"]
        assert answer.headers["retry-after"] == "1"
        told = (await client.get("/health")).json()
        assert told["status"] == "degraded"
        assert told["models"][0] | {"reason": ""} == {
            "model": "a",
            "state": "failed",
            "running": 0,
            "waiting": 0,
            "deaths": 2,
            "reason": "",
        }
        rig.models[0].may_start_s = 0.0
        rig.fails_starts = False
        assert await by(client, model="a") == "a"

    within(rig, work)


def test_models_are_listed_with_their_states_and_metrics_have_their_names() -> None:
    rig = Rig("a", "b,b2", loads_at_start=True)

    async def work(client: Client) -> None:
        await rig.fleet.load_at_start()
        cards = (await client.get("/v1/models")).json()["data"]
        assert [(card["id"], card["root"], card["state"]) for card in cards] == [
            ("a", "a", "loaded"),
            ("b", "b", "loaded"),
            ("b2", "b", "loaded"),
        ]
        assert cards[0]["max_model_len"] == 64  # what the model's server says now
        text = (await client.get("/metrics")).text
        assert text.count("# TYPE x gauge") == 1
        assert 'x{model_name="a",engine="0"} 1' in text
        assert 'x{model_name="b",engine="0"} 1' in text
        assert 'vllm_y{model_name="b"} 2' in text

    within(rig, work)


def test_ollamas_lists_are_of_all_models() -> None:
    rig = Rig("a", "b,b2")

    async def work(client: Client) -> None:
        assert await by(client, model="b:latest") == "b"
        tags = (await client.get("/api/tags")).json()["models"]
        assert [(one["name"], one["size"]) for one in tags] == [("a", 0), ("b", 7)]
        assert [one["name"] for one in (await client.get("/api/ps")).json()["models"]] == ["b"]

    within(rig, work)


def test_who_leaves_first() -> None:
    models = Rig("a", "b", "c").models

    def stand(number: int, state: ModelState, *, used_s: float, running: int = 0) -> None:
        model = models[number]
        model.state, model.last_used_s, model.num_running = state, used_s, running

    stand(0, ModelState.LOADED, used_s=1.0, running=1)
    stand(1, ModelState.LOADED, used_s=3.0)
    stand(2, ModelState.LOADED, used_s=2.0)
    assert leaving_first(models, 100.0) is models[2]
    stand(1, ModelState.ASLEEP, used_s=3.0)
    assert leaving_first(models, 100.0) is models[1]
    assert leaving_first(models[:1], 100.0) is models[0]
    assert leaving_first(models[:1], 1.0) is None


@pytest.mark.parametrize("error", [RuntimeError("odd"), TypeError("odd"), RecursionError("odd")])
def test_a_model_whose_start_fails_in_an_unforeseen_way_is_started_again(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig("a", "b")

    async def work(client: Client) -> None:
        with monkeypatch.context() as patch:

            async def fails(self: Any) -> None:
                raise error

            patch.setattr("support.fake_models.FakeServer.wait_ready", fails)
            answer = await client.post(PATH, json={"model": "a"})
            assert answer.status_code == 503 and "odd" in answer.json()["error"]["message"]
        assert await by(client, model="a") == "a"

    within(rig, work)

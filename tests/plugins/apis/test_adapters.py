"""Adapters over HTTP: asked for by name in every family, loaded, unloaded, listed, resolved."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import httpx
import pytest

from dovetail.engine.parts.adapters import unknown_adapter
from dovetail.errors import ConfigError, RequestError
from dovetail.interfaces.adapter_resolver import AdapterResolver, ResolverFacts
from dovetail.interfaces.data.adapter_spec import AdapterSearch, AdapterSource
from dovetail.interfaces.data.pooling_params import CLASSIFY, EMBED
from dovetail.interfaces.data.spec import Selection
from dovetail.interfaces.plugin import Info
from dovetail.server.generate import adapters as served_adapters
from dovetail_testing.fakes.adapters import fake_room
from dovetail_testing.fakes.async_engine import FakeAsyncEngine, fake_pooling, fake_spec
from support.serving import USER, app_for, complete, events_of, send, with_client

SQL = AdapterSource(name="sql", path="/adapters/sql")
FROM_BASE = AdapterSource(name="tuned", path="/adapters/tuned", base="alias")
LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"


class Registry(AdapterResolver):
    """A third party's: knows names that begin with "found"."""

    info = Info(summary="test resolver")
    asked: list[str] = []

    def __init__(self, options: Any, facts: ResolverFacts) -> None:
        self.facts = facts

    def find(self, name: str) -> AdapterSource | None:
        """Return the adapter of a name."""
        self.asked.append(name)
        if name == "raises":
            raise OSError("no network")
        if name == "refuses":
            raise RequestError("this name is not for you.", status=403)
        if name == "other":
            return AdapterSource(name="sql", path="/elsewhere")
        return AdapterSource(name=name, path=f"/r/{name}") if name.startswith("found") else None


class Broken(Registry):
    """One that cannot be made."""

    def __init__(self, options: Any, facts: ResolverFacts) -> None:
        raise ConfigError("has no server.", where="--lora-resolvers")


@pytest.fixture(autouse=True)
def _clear() -> None:
    Registry.asked.clear()


RESOLVER = Selection(kind="adapter_resolver", name="registry", target=f"{__name__}:Registry")


def engine_for(**changes: Any) -> FakeAsyncEngine:
    fields = {"room": fake_room(), "adapters": (SQL, FROM_BASE)}
    return FakeAsyncEngine(spec=fake_spec(**(fields | changes)))


def pooling_engine(**changes: Any) -> FakeAsyncEngine:
    return engine_for(pooling=fake_pooling(**changes))


def folder_of(path: Path, **config: Any) -> Path:
    path.mkdir()
    (path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA"} | config))
    return path


GENERATING: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"prompt": "hi"}),
    ("/v1/chat/completions", {"messages": USER}),
    ("/v1/responses", {"input": "hi"}),
    ("/v1/messages", {"messages": USER, "max_tokens": 9}),
    ("/api/chat", {"messages": USER, "stream": False}),
    ("/api/generate", {"prompt": "hi", "stream": False}),
    ("/api/generate", {"prompt": "hi", "stream": False, "raw": True}),
    ("/invocations", {"messages": USER}),
]
POOLING: list[tuple[str, dict[str, Any]]] = [
    ("/v1/embeddings", {"input": "hi"}),
    ("/pooling", {"input": "hi"}),
    ("/v2/embed", {"texts": ["hi"], "embedding_types": ["float"]}),
    ("/score", {"text_1": "a", "text_2": "b"}),
    ("/rerank", {"query": "a", "documents": ["b"]}),
    ("/api/embed", {"input": "hi"}),
    ("/api/embeddings", {"prompt": "hi"}),
]


@pytest.mark.parametrize(("path", "body"), GENERATING)
def test_a_request_uses_the_adapter_that_it_names(path: str, body: dict[str, Any]) -> None:
    app, engine = app_for(engine=engine_for())
    answer = send(app, "POST", path, body | {"model": "sql"})
    assert answer.status_code == 200, answer.text
    assert answer.json()["model"] == "sql"
    assert engine.asked[0][2]["adapter"] == "sql"
    plain = send(app, "POST", path, body | {"model": "alias"})
    assert plain.json()["model"] == "alias"
    assert "adapter" not in engine.asked[1][2]


@pytest.mark.parametrize(("path", "body"), POOLING)
def test_pooled_requests_use_it_too(path: str, body: dict[str, Any]) -> None:
    app, engine = app_for(engine=pooling_engine())
    answer = send(app, "POST", path, body | {"model": "sql"})
    assert answer.status_code == 200, answer.text
    assert set(engine.pooled_with) == {"sql"}
    if path != "/api/embeddings":
        assert answer.json()["model"] == "sql"
    send(app, "POST", path, body | {"model": "fake"})
    assert engine.pooled_with[-1] == ""


def test_classes_come_from_it_too() -> None:
    app, engine = app_for(engine=pooling_engine(tasks=(CLASSIFY,), labels=("a", "b")))
    assert send(app, "POST", "/classify", {"input": "x", "model": "sql"}).json()["model"] == "sql"
    assert engine.pooled_with == ["sql"]


@pytest.mark.parametrize(("path", "body"), [*GENERATING, *POOLING])
def test_a_name_that_is_not_there_is_404_in_the_familys_shape(
    path: str, body: dict[str, Any]
) -> None:
    engine = pooling_engine() if (path, body) in POOLING else engine_for()
    app, _ = app_for(engine=engine)
    answer = send(app, "POST", path, body | {"model": "absent"})
    assert answer.status_code == 404
    told = answer.json()
    if path.startswith("/api/"):
        assert isinstance(told["error"], str)
    elif path == "/v1/messages":
        assert told["type"] == "error"
    elif path == "/v2/embed":
        assert set(told) == {"id", "message"}
    else:
        assert told["error"]["code"] == "model_not_found"
    assert "sql" in answer.text
    assert not engine.asked
    assert not engine.pooled


def test_a_stream_and_several_answers_and_beams_use_it() -> None:
    app, engine = app_for(engine=engine_for())
    events = events_of(complete(app, model="sql", stream=True, n=2))
    assert {event["model"] for event in events if event != "[DONE]"} == {"sql"}
    assert complete(app, model="sql", n=2, use_beam_search=True, max_tokens=2).status_code == 200
    assert {extras.get("adapter") for _, _, extras in engine.asked} == {"sql"}


def test_an_adapter_that_the_engine_forgot_meanwhile_is_404() -> None:
    app, engine = app_for(engine=engine_for())

    async def work(client: httpx.AsyncClient) -> list[httpx.Response]:
        first = await client.post("/v1/completions", json={"prompt": "a", "model": "sql"})
        del engine.loaded["sql"]  # another API process was asked to
        return [
            first,
            await client.post("/v1/completions", json={"prompt": "a", "model": "sql"}),
            await client.post(
                "/v1/completions", json={"prompt": "a", "model": "sql", "stream": True}
            ),
        ]

    first, *later = with_client(app, work)
    assert first.status_code == 200
    assert [answer.status_code for answer in later] == [404, 404]
    assert later[0].json()["error"]["code"] == "model_not_found"
    assert engine.num_lists == 1  # it was known, and the engine said that it is gone


def test_what_another_process_loads_is_found_at_once_and_nothing_known_is_asked_again() -> None:
    app, engine = app_for(engine=engine_for(adapters=()))

    async def work(client: httpx.AsyncClient) -> list[int]:
        async def status() -> int:
            body = {"prompt": "a", "model": "sql"}
            return (await client.post("/v1/completions", json=body)).status_code

        found = [await status()]
        engine.loaded["sql"] = SQL
        return [*found, *[await status() for _ in range(3)]]

    assert with_client(app, work) == [404, 200, 200, 200]
    assert engine.num_lists == 2


def test_what_was_told_is_asked_again_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served_adapters, "FRESH_S", 0.0)
    app, engine = app_for(engine=engine_for())
    assert [complete(app, model="sql").status_code for _ in range(3)] == [200] * 3
    assert engine.num_lists == 3


def test_a_server_without_adapters_asks_nobody() -> None:
    app, engine = app_for(engine=FakeAsyncEngine())
    assert complete(app, model="sql").status_code == 404
    assert len(send(app, "GET", "/v1/models").json()["data"]) == 2
    assert engine.num_lists == 0


def test_models_lists_adapters_with_root_and_parent() -> None:
    app, _ = app_for(engine=engine_for())
    cards = {card["id"]: card for card in send(app, "GET", "/v1/models").json()["data"]}
    assert list(cards) == ["fake", "alias", "sql", "tuned"]
    assert (cards["fake"]["root"], cards["fake"]["parent"]) == ("fake", None)
    assert (cards["sql"]["root"], cards["sql"]["parent"]) == ("/adapters/sql", "fake")
    assert cards["tuned"]["parent"] == "alias"
    assert send(app, "GET", "/v1/models/sql").json() == cards["sql"]
    assert send(app, "GET", "/v1/models/fake").json() == cards["fake"]
    assert send(app, "GET", "/v1/models/absent").status_code == 404


def test_ollama_lists_and_shows_them() -> None:
    app, _ = app_for(engine=engine_for())
    names = [model["name"] for model in send(app, "GET", "/api/tags").json()["models"]]
    assert names == ["fake", "alias", "sql", "tuned"]
    shown = send(app, "POST", "/api/show", {"model": "sql:latest"}).json()
    assert shown["modelfile"].splitlines()[0] == "FROM fake"
    assert shown["modelfile"].splitlines()[-1] == "ADAPTER sql"
    assert shown["details"]["parent_model"] == "fake"


def test_load_use_reload_unload(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "poems")
    app, engine = app_for(engine=engine_for(adapters=()), allow_runtime_lora_updating=True)
    body = {"lora_name": "poems", "lora_path": str(folder)}
    loaded = send(app, "POST", LOAD, body | {"base_model_name": "alias"})
    assert (loaded.status_code, loaded.text) == (
        200,
        "Success: LoRA adapter 'poems' added successfully.",
    )
    assert engine.loaded["poems"] == AdapterSource(name="poems", path=str(folder), base="alias")
    assert complete(app, model="poems").json()["model"] == "poems"

    again = send(app, "POST", LOAD, body)
    assert again.status_code == 400
    assert again.json()["error"]["param"] == "lora_name"
    assert send(app, "POST", LOAD, body | {"load_inplace": True}).status_code == 200

    gone = send(app, "POST", UNLOAD, {"lora_name": "poems", "lora_int_id": 3})
    assert (gone.status_code, gone.text) == (
        200,
        "Success: LoRA adapter 'poems' removed successfully.",
    )
    assert complete(app, model="poems").status_code == 404
    assert send(app, "POST", UNLOAD, {"lora_name": "poems"}).status_code == 404


def test_what_cannot_be_loaded_says_why_and_ends_nothing(tmp_path: Path) -> None:
    app, engine = app_for(engine=engine_for(), allow_runtime_lora_updating=True)
    engine.broken_adapters.add("nan")
    cases: list[tuple[dict[str, Any], int, str]] = [
        ({"lora_name": "x", "lora_path": str(tmp_path / "none")}, 404, "lora_path"),
        ({"lora_name": "x", "lora_path": "org/none"}, 404, "lora_path"),
        ({"lora_name": "x", "lora_path": str(tmp_path)}, 404, "lora_path"),
        ({"lora_name": "fake", "lora_path": str(tmp_path)}, 400, "lora_name"),
        ({"lora_name": "", "lora_path": str(tmp_path)}, 400, "lora_name"),
        ({"lora_name": "x"}, 400, "lora_path"),
        ({"lora_path": str(tmp_path)}, 400, "lora_name"),
    ]
    for body, status, param in cases:
        answer = send(app, "POST", LOAD, body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (status, param), body
    folder = folder_of(tmp_path / "nan")
    broken = send(app, "POST", LOAD, {"lora_name": "nan", "lora_path": str(folder)})
    assert broken.status_code == 400
    assert broken.json()["error"]["param"] == str(folder)
    assert list(engine.loaded) == ["sql", "tuned"]
    assert complete(app, model="sql").status_code == 200


def test_loading_needs_its_flag_and_room_for_adapters(tmp_path: Path) -> None:
    app, _ = app_for(engine=engine_for())
    for path in (LOAD, UNLOAD):
        refused = send(app, "POST", path, {"lora_name": "a", "lora_path": "b"})
        assert refused.status_code == 404
        assert "--allow-runtime-lora-updating" in refused.json()["error"]["message"]
    app, _ = app_for(engine=FakeAsyncEngine(), allow_runtime_lora_updating=True)
    body = {"lora_name": "a", "lora_path": str(folder_of(tmp_path / "a"))}
    for path in (LOAD, UNLOAD):
        refused = send(app, "POST", path, body if path == LOAD else {"lora_name": "a"})
        assert refused.status_code == 400
        assert "--enable-lora" in refused.json()["error"]["message"]


def test_a_resolver_finds_what_is_not_loaded() -> None:
    search = AdapterSearch(resolvers=(RESOLVER,), base_names=("fake",))
    app, engine = app_for(engine=engine_for(adapter_search=search))

    async def work(client: httpx.AsyncClient) -> list[int]:
        body = {"prompt": "a", "model": "found/1"}
        both = [client.post("/v1/completions", json=body) for _ in range(4)]
        answers = await asyncio.gather(*both)
        answers += [await client.post("/v1/completions", json=body)]
        return [answer.status_code for answer in answers]

    assert with_client(app, work) == [200] * 5
    assert Registry.asked == ["found/1"]  # one search for all who asked
    assert engine.loaded["found/1"].path == "/r/found/1"
    assert complete(app, model="sql").status_code == 200  # known: nobody is asked
    assert Registry.asked == ["found/1"]


def test_what_a_resolver_does_wrong_is_its_own(caplog: pytest.LogCaptureFixture) -> None:
    search = AdapterSearch(resolvers=(RESOLVER,))
    app, engine = app_for(engine=engine_for(adapter_search=search))
    engine.broken_adapters.add("found-broken")
    with caplog.at_level(logging.ERROR, "dovetail.server"):
        statuses = {
            name: complete(app, model=name).status_code
            for name in ("raises", "refuses", "other", "absent", "found-broken", "x" * 300)
        }
    assert statuses == {
        "raises": 404,
        "refuses": 403,
        "other": 404,
        "absent": 404,
        "found-broken": 400,
        "x" * 300: 404,
    }
    assert "no network" in caplog.text
    assert "x" * 300 not in Registry.asked
    assert complete(app, model="fake").status_code == 200


def test_another_process_may_be_quicker_to_load_what_was_found() -> None:
    class Raced(FakeAsyncEngine):
        async def load_adapter(self, source: AdapterSource, *, replaces: bool = False) -> None:
            self.loaded[source.name] = source
            raise RequestError("is loaded already.")

    search = AdapterSearch(resolvers=(RESOLVER,))
    raced = Raced(spec=fake_spec(room=fake_room(), adapter_search=search))
    app, _ = app_for(engine=raced)
    assert complete(app, model="found").status_code == 200


def test_a_resolver_that_cannot_be_made_is_told_at_the_start() -> None:
    broken = Selection(kind="adapter_resolver", name="broken", target=f"{__name__}:Broken")
    with pytest.raises(ConfigError, match="has no server"):
        app_for(engine=engine_for(adapter_search=AdapterSearch(resolvers=(broken,))))


@pytest.mark.parametrize(
    ("field", "value"),
    [("lora", [{"id": 0, "scale": 0.5}]), ("lora_path", "x"), ("adapter_id", "x")],
)
def test_other_servers_ways_to_ask_are_refused_with_the_way_here(field: str, value: Any) -> None:
    app, _ = app_for(engine=engine_for())
    refused = complete(app, **{field: value})
    assert refused.status_code == 400
    assert "as model" in refused.json()["error"]["message"]


def test_the_log_says_which_adapter(caplog: pytest.LogCaptureFixture) -> None:
    app, _ = app_for(engine=engine_for(), enable_log_requests=True)
    pools, _ = app_for(engine=pooling_engine(tasks=(EMBED,)), enable_log_requests=True)
    with caplog.at_level(logging.INFO, "dovetail.server"):
        complete(app, model="sql")
        send(pools, "POST", "/v1/embeddings", {"input": "x", "model": "sql"})
    assert sum("adapter sql" in line for line in caplog.messages) == 2


def test_what_is_unknown_to_the_engine_has_a_status() -> None:
    assert unknown_adapter("x").status == 404

"""Models of this machine that join a gateway when a request names them, and leave it again."""

from __future__ import annotations

import asyncio
import json
import math
import shutil
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from dovetail.config.config import Config
from dovetail.errors import ConfigError, RequestError
from dovetail_plugins.gateway import catalogue as catalogue_module
from dovetail_plugins.gateway import fleet as fleet_module
from dovetail_plugins.gateway import progress as progress_module
from dovetail_plugins.gateway.catalogue import Catalogue
from dovetail_plugins.gateway.entries import entries_of, offers_any
from dovetail_plugins.gateway.model import ModelState
from dovetail_plugins.gateway.routing import keep_alive_s
from dovetail_plugins.gateway.server import child_fields
from dovetail_testing.tiny.models import write_tiny_checkpoint, write_tiny_tokenizer
from support.fake_models import Rig

Client = httpx.AsyncClient
PATH = "/v1/completions"
NAMES = ("alone", "anna/poems", "bert/tales", "bert/poems")


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of models."""
    folder = tmp_path_factory.mktemp("originals")
    for name in NAMES:
        write_tiny_checkpoint(folder / name, "LlamaForCausalLM", num_hidden_layers=1)
        write_tiny_tokenizer(folder / name)
    return folder


@pytest.fixture
def folder(originals: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a copy of the folder, the only place on this machine that has models."""
    empty = tmp_path / "empty"
    for variable in ("HF_HUB_CACHE", "MODELSCOPE_CACHE", "OLLAMA_MODELS", "HOME"):
        monkeypatch.setenv(variable, str(empty))
    monkeypatch.setattr(catalogue_module, "SCAN_PERIOD_S", 0.0)
    monkeypatch.setattr(fleet_module, "WATCH_PERIOD_S", 0.005)
    monkeypatch.setattr(fleet_module, "LOOK_PERIOD_S", 0.005)
    monkeypatch.setattr(fleet_module, "SETTLED_S", 0.0)
    shutil.copytree(originals, tmp_path / "models")
    return tmp_path / "models"


def catalogue_of(folder: Path, **fields: Any) -> Catalogue:
    return Catalogue(Config.from_fields({"models": "any", "model_dir": [str(folder)]} | fields))


def within(rig: Rig, work: Callable[[Client], Awaitable[Any]]) -> Any:
    """Return what `work` returns, with a client of the rig."""

    async def main() -> Any:
        async with rig.client() as client:
            return await work(client)

    return asyncio.run(main())


async def until(is_so: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 5
    while not is_so():
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.002)


async def by(client: Client, model: str) -> Any:
    answer = await client.post(PATH, json={"prompt": "hi", "model": model})
    return answer.json().get("by", answer)


def test_any_model_of_the_machine_is_loaded_by_its_name_or_an_alias(folder: Path) -> None:
    rig = Rig(catalogue=catalogue_of(folder))

    async def work(client: Client) -> None:
        cards = (await client.get("/v1/models")).json()["data"]
        assert [(card["id"], card["state"]) for card in cards] == [
            (name, "unloaded") for name in sorted(NAMES)
        ]
        assert all(card["size_bytes"] > 0 for card in cards)
        for name in ("bert/tales", "tales", "bert/tales:latest", "hf.co/bert/tales"):
            assert await by(client, name) == "bert/tales"
        assert await by(client, "alone:latest") == "alone"
        cards = (await client.get("/v1/models")).json()["data"]
        assert {card["id"]: card["state"] for card in cards} == {
            "alone": "loaded",
            "anna/poems": "unloaded",
            "bert/poems": "unloaded",
            "bert/tales": "loaded",
        }
        tags = (await client.get("/api/tags")).json()["models"]
        assert sorted(one["name"] for one in tags) == sorted(NAMES)

    within(rig, work)
    assert rig.names_started() == ["bert/tales", "alone"]


@pytest.mark.parametrize("name", ["poems", "../models/alone", "nobody", "ALONE/", "alone:x"])
def test_nothing_else_can_be_named(folder: Path, name: str) -> None:
    rig = Rig(catalogue=catalogue_of(folder))

    async def work(client: Client) -> None:
        for named in (name, str(folder / "alone")):
            answer = await client.post(PATH, json={"prompt": "hi", "model": named})
            assert answer.status_code == 404
            assert answer.json()["error"]["code"] == "model_not_found"

    within(rig, work)
    assert rig.started == []


def test_a_request_without_a_name_needs_a_model(folder: Path) -> None:
    rig = Rig(catalogue=catalogue_of(folder))

    async def work(client: Client) -> None:
        answer = await client.post(PATH, json={"prompt": "hi"})
        assert answer.status_code == 400
        assert "names no model" in answer.json()["error"]["message"]
        assert await by(client, "alone") == "alone"
        assert (await client.post(PATH, json={"prompt": "hi"})).json()["by"] == "alone"

    within(rig, work)


def test_models_that_come_and_go_on_the_disk(folder: Path) -> None:
    rig = Rig(catalogue=catalogue_of(folder))

    async def work(client: Client) -> None:
        shutil.copytree(folder / "alone", folder / "newer")
        assert await by(client, "newer") == "newer"
        shutil.rmtree(folder / "newer")
        assert await by(client, "newer") == "newer"  # it is in memory
        rig.fleet.let_go(rig.fleet.models[0])
        await until(lambda: rig.fleet.models[0].state is ModelState.UNLOADED)
        answer = await client.post(PATH, json={"prompt": "hi", "model": "newer"})
        assert answer.status_code == 404

    within(rig, work)


def test_a_model_that_cannot_be_served_says_why(folder: Path) -> None:
    (folder / "alone" / "config.json").write_text("{")
    rig = Rig(catalogue=catalogue_of(folder))

    async def work(client: Client) -> None:
        answer = await client.post(PATH, json={"prompt": "hi", "model": "alone"})
        assert answer.status_code == 400
        assert "config.json" in answer.json()["error"]["message"]
        assert await by(client, "tales") == "bert/tales"

    within(rig, work)


def test_the_settings_of_a_model_found_by_name(folder: Path) -> None:
    catalogue = catalogue_of(folder, max_num_seqs=3)
    stored = catalogue.find("tales")
    assert stored is not None
    entry = catalogue.entry(stored)
    fields = child_fields(entry, "/s")
    assert entry.idle_after_s == 300.0 and not entry.loads_at_start
    assert fields["max_num_seqs"] == 3
    assert 0 < fields["kv_cache_memory_bytes"] < 2**20
    assert {"bert/tales", "tales"} <= set(fields["served_model_name"])
    given = catalogue_of(folder, idle_after_s=7, kv_cache_memory_bytes=2**20)
    entry = given.entry(stored)
    assert entry.idle_after_s == 7.0
    assert child_fields(entry, "/s")["kv_cache_memory_bytes"] == 2**20


def test_a_file_may_offer_all_others_too(tmp_path: Path) -> None:
    file = tmp_path / "models.yaml"

    def config(text: str) -> Config:
        file.write_text(text)
        return Config.from_fields({"models": str(file)})

    both = config("any: true\nmodels: [{model: /x, pinned: true}]")
    (entry,) = entries_of(both, ())
    assert entry.is_pinned and offers_any(both)
    assert entries_of(config("any: true"), ()) == ()
    assert not offers_any(config("models: [{model: /x}]"))
    with pytest.raises(ConfigError, match="true or false"):
        offers_any(config("any: often"))
    with pytest.raises(ConfigError, match="with a list of models"):
        entries_of(config("any: false"), ())


def test_so_many_models_are_loaded_and_pinned_ones_stay(folder: Path) -> None:
    rig = Rig("p", catalogue=catalogue_of(folder), max_loaded=2, is_pinned=True)

    async def work(client: Client) -> None:
        assert await by(client, "p") == "p"
        for name in ("alone", "tales", "alone"):
            assert (await by(client, name)).endswith(name)
            assert sum(model.is_resident for model in rig.fleet.models) == 2
            assert rig.models[0].state is ModelState.LOADED

    within(rig, work)
    assert rig.names_started() == ["p", "alone", "bert/tales", "alone"]


def test_keep_alive_of_a_request_says_when_its_model_leaves(folder: Path) -> None:
    rig = Rig(catalogue=catalogue_of(folder))

    async def chat(client: Client, **fields: Any) -> Any:
        body = {"model": "alone", "stream": False} | fields
        return (await client.post("/api/generate", json=body)).json()

    async def work(client: Client) -> None:
        await chat(client, prompt="hi", keep_alive="1h")
        (row,) = (await client.get("/api/ps")).json()["models"]
        assert not row["expires_at"].startswith("9999")
        model = rig.fleet.models[0]
        assert 3500 < (model.idle_for_s() or 0) <= 3600
        await chat(client, prompt="hi", keep_alive=-1)
        assert model.idle_for_s() is None
        await chat(client, prompt="hi")
        assert 290 < (model.idle_for_s() or 0) <= 300
        answer = await chat(client, keep_alive=0)
        assert (answer["done"], answer["done_reason"], answer["response"]) == (True, "unload", "")
        await until(lambda: model.state is ModelState.UNLOADED)
        await chat(client, prompt="hi", keep_alive=0)
        await until(lambda: model.state is ModelState.UNLOADED)
        assert (await chat(client, prompt="hi", keep_alive="soon"))["error"].startswith(
            "keep_alive"
        )

    within(rig, work)
    assert rig.names_started() == ["alone", "alone"]


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        ("", None),
        (0, 0.0),
        ("0", 0.0),
        ("5m", 300.0),
        ("1h30m", 5400.0),
        ("1.5h", 5400.0),
        ("250ms", 0.25),
        (2.5, 2.5),
        (-1, math.inf),
        ("-5m", math.inf),
    ],
)
def test_durations(value: Any, seconds: float | None) -> None:
    assert keep_alive_s(value) == seconds


@pytest.mark.parametrize("value", ["soon", "5 m", "m", "5x", "90", True, [], {}, float("nan"), "-"])
def test_what_is_no_duration(value: Any) -> None:
    with pytest.raises(RequestError, match="duration"):
        keep_alive_s(value)


@pytest.fixture
def quick_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_module, "FIRST_AFTER_S", 0.01)
    monkeypatch.setattr(progress_module, "PERIOD_S", 0.01)


@pytest.mark.parametrize(
    ("path", "fields"),
    [(PATH, {"prompt": "hi"}), ("/v1/messages", {"messages": [], "max_tokens": 1})],
)
def test_a_stream_that_waits_begins_with_comments(
    quick_reports: None, folder: Path, path: str, fields: dict[str, Any]
) -> None:
    rig = Rig(catalogue=catalogue_of(folder))
    rig.holds_starts = True

    async def work(client: Client) -> None:
        body = {"model": "alone", "stream": True} | fields
        stream = asyncio.ensure_future(client.post(path, json=body))
        await until(lambda: bool(rig.started))
        await asyncio.sleep(0.05)
        rig.started[0].gate.set()
        rig.started[0].may_start.set()
        answer = await stream
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.text.startswith(': "alone" is being loaded, 0 s\n\n')
        assert answer.text.endswith("\n\ndata: 1\n\ndata: [DONE]\n\n")

    within(rig, work)


def test_a_stream_of_ollama_that_waits_begins_with_empty_pieces(
    quick_reports: None, folder: Path
) -> None:
    rig = Rig(catalogue=catalogue_of(folder))
    rig.holds_starts = True

    async def work(client: Client) -> None:
        messages = [{"role": "user", "content": "hi"}]
        stream = asyncio.ensure_future(
            client.post("/api/chat", json={"model": "alone", "messages": messages})
        )
        await until(lambda: bool(rig.started))
        await asyncio.sleep(0.05)
        rig.started[0].may_start.set()
        first, *_ = (await stream).text.splitlines()
        piece = json.loads(first)
        assert (piece["model"], piece["done"]) == ("alone", False)
        assert piece["message"] == {"role": "assistant", "content": ""}

    within(rig, work)


@pytest.mark.parametrize(
    ("path", "end"),
    [
        (PATH, "data: [DONE]"),
        ("/v1/messages", "event: error"),
        ("/api/generate", '{"error"'),
    ],
)
def test_a_failure_behind_comments_is_an_event_of_the_stream(
    quick_reports: None, folder: Path, path: str, end: str
) -> None:
    rig = Rig(catalogue=catalogue_of(folder))
    rig.holds_starts = rig.fails_starts = True

    async def work(client: Client) -> None:
        body = {"model": "alone", "stream": True, "prompt": "hi"}
        stream = asyncio.ensure_future(client.post(path, json=body))
        await until(lambda: bool(rig.started))
        await asyncio.sleep(0.05)
        rig.started[0].may_start.set()
        answer = await stream
        assert answer.status_code == 200
        assert "could not be loaded" in answer.text
        assert end in answer.text

    within(rig, work)


def test_a_quick_failure_has_its_own_status(folder: Path) -> None:
    rig = Rig(catalogue=catalogue_of(folder))
    rig.fails_starts = True

    async def work(client: Client) -> None:
        answer = await client.post(PATH, json={"model": "alone", "stream": True, "prompt": "hi"})
        assert answer.status_code == 503

    within(rig, work)

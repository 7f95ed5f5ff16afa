"""Pulling over HTTP from a hub on this machine, and what goes wrong with it."""

from __future__ import annotations

import asyncio
import json
import resource
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from dovetail.errors import RequestError
from dovetail.processes.process import Child
from dovetail_plugins.gateway.manage import lines as lines_module
from dovetail_plugins.gateway.manage.pulling import pulled_name
from support.any_models import any_rig, demo_files, digest_of, own_stores
from support.fake_hub import LocalHub, Repo
from support.fake_models import Rig

pytest.importorskip("huggingface_hub")
FILES = demo_files() | {"README.md": b"# Model"}
WEIGHTS = FILES["model.safetensors"]
Client = httpx.AsyncClient


@pytest.fixture(autouse=True)
def stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    own_stores(tmp_path, monkeypatch)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def with_hub(
    monkeypatch: pytest.MonkeyPatch,
    work: Callable[[Client, LocalHub], Awaitable[Any]],
    repo: Repo,
    rig: Rig | None = None,
) -> Any:
    """Return what `work` returns, given a client of a gateway, and a hub with one model."""
    with LocalHub(org__model=repo) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)

        async def main() -> Any:
            async with (rig or any_rig()).client() as client:
                return await work(client, hub)

        return asyncio.run(main())


async def pulled(client: Client, model: str = "org/model", **more: Any) -> list[dict[str, Any]]:
    answer = await client.post("/api/pull", json={"model": model} | more)
    assert answer.status_code == 200, answer.text
    return [json.loads(line) for line in answer.text.splitlines()]


def test_a_model_arrives_with_its_progress_and_can_be_named(
    monkeypatch: pytest.MonkeyPatch, stores: Path
) -> None:
    async def work(client: Client, hub: LocalHub) -> None:
        before = await client.post("/v1/completions", json={"model": "org/model"})
        assert before.status_code == 404
        lines = await pulled(client)
        texts = [line["status"] for line in lines]
        assert texts[0] == "pulling manifest"
        assert texts[-3:] == ["verifying sha256 digest", "writing manifest", "success"]
        own = [line for line in lines if line.get("digest") == digest_of(WEIGHTS)]
        assert own[0]["completed"] == 0
        assert own[-1]["completed"] == own[-1]["total"] == len(WEIGHTS)
        assert [line["completed"] for line in own] == sorted(line["completed"] for line in own)
        after = await client.post("/v1/completions", json={"model": "org/model"})
        assert after.json()["by"] == "org/model"
        num_asked = len(hub.ranges_of("model.safetensors"))
        again = await pulled(client, "hf.co/org/model:latest")
        assert again[-1] == {"status": "success"}
        assert len(hub.ranges_of("model.safetensors")) == num_asked == 1

    with_hub(monkeypatch, work, Repo(FILES))
    (snapshot,) = (stores / "hub" / "models--org--model" / "snapshots").iterdir()
    assert (snapshot / "model.safetensors").read_bytes() == WEIGHTS
    assert not (snapshot / "README.md").exists()


def test_a_cut_connection_is_taken_up_where_it_broke(monkeypatch: pytest.MonkeyPatch) -> None:
    repo = Repo(FILES, cuts={"model.safetensors": [600_000, 700_000]})

    async def work(client: Client, hub: LocalHub) -> None:
        lines = await pulled(client)
        assert lines[-1] == {"status": "success"}
        first, *others = hub.ranges_of("model.safetensors")
        assert first == ""
        assert others
        assert all(int(one.partition("-")[0]) > 0 for one in others)

    with_hub(monkeypatch, work, repo)


def test_a_wrong_checksum_is_an_error_and_leaves_no_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for file in ("model.safetensors", "config.json"):
        wrong = FILES[file][:-1] + bytes([FILES[file][-1] ^ 1])
        repo = Repo(FILES, wrong={file: wrong})

        async def work(client: Client, hub: LocalHub) -> None:
            lines = await pulled(client)
            assert set(lines[-1]) == {"error"}
            assert "checksum" in lines[-1]["error"]
            assert file in lines[-1]["error"]  # noqa: B023
            answer = await client.post("/v1/completions", json={"model": "org/model"})
            assert answer.status_code in (400, 404)
            repo.wrong.clear()  # noqa: B023
            assert (await pulled(client))[-1] == {"status": "success"}
            await client.delete("/v1/models/org/model")

        with_hub(monkeypatch, work, repo)


def test_unknown_gated_and_offline_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(client: Client, hub: LocalHub) -> None:
        gated = (await pulled(client))[-1]
        assert "gated" in gated["error"]
        unknown = (await pulled(client, "org/other"))[-1]
        assert "org/other: the hub did not give it" in unknown["error"]
        whole = await client.post("/api/pull", json={"model": "org/other", "stream": False})
        assert (whole.status_code, set(whole.json())) == (500, {"error"})
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        assert "HF_HUB_OFFLINE" in (await pulled(client))[-1]["error"]
        monkeypatch.delenv("HF_HUB_OFFLINE")
        monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
        assert "the hub did not give it" in (await pulled(client))[-1]["error"]

    with_hub(monkeypatch, work, Repo(FILES, is_gated=True))


def test_the_servers_token_opens_gated_models_and_is_not_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work(client: Client, hub: LocalHub) -> None:
        answer = await client.post("/api/pull", json={"model": "org/model", "stream": False})
        assert answer.json() == {"status": "success"}
        missing = await client.post("/api/pull", json={"model": "org/model:Q4_K_M"})
        assert "has no *.gguf file" in missing.text
        assert "secret" not in missing.text

    rig = any_rig(config={"hf_token": "secret"})
    with_hub(monkeypatch, work, Repo(FILES, is_gated=True), rig)


def test_a_full_disk_is_said(monkeypatch: pytest.MonkeyPatch, stores: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    async def work(client: Client, hub: LocalHub) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(WEIGHTS) // 2, limits[1]))
        try:
            lines = await pulled(client)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert "is full" in lines[-1]["error"]
        assert (await pulled(client))[-1] == {"status": "success"}

    with_hub(monkeypatch, work, Repo(FILES))


def test_pulls_of_one_model_share_a_download_and_end_with_the_last_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = any_rig()
    pulls = rig.app.state.server.management.pulls

    async def work(client: Client, hub: LocalHub) -> None:
        hub.gate.clear()
        one, two = (asyncio.ensure_future(pulled(client, name)) for name in NAMES)
        await until(lambda: hub.ranges_of("model.safetensors"))
        assert pulls.num_running == 1
        one.cancel()
        await asyncio.sleep(0.1)
        assert pulls.num_running == 1
        hub.gate.set()
        assert (await two)[-1] == {"status": "success"}
        assert len(hub.ranges_of("model.safetensors")) == 1

    with_hub(monkeypatch, work, Repo(FILES), rig)
    assert pulls.num_running == 0


NAMES = ("org/model", "hf.co/org/model:latest")


def noted_children(monkeypatch: pytest.MonkeyPatch) -> list[Child]:
    """Return a list to which the process of every later download is added."""
    children: list[Child] = []
    usual = lines_module.spawn

    def spawn(*words: Any, **more: Any) -> Child:
        children.append(usual(*words, **more))
        return children[-1]

    monkeypatch.setattr(lines_module, "spawn", spawn)
    return children


def test_a_client_that_leaves_ends_its_download(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = any_rig()
    pulls = rig.app.state.server.management.pulls

    async def work(client: Client, hub: LocalHub) -> None:
        children = noted_children(monkeypatch)
        hub.gate.clear()
        task = asyncio.ensure_future(pulled(client))
        await until(lambda: hub.ranges_of("model.safetensors"))
        task.cancel()
        await asyncio.sleep(0)  # the first one ends while the next one begins
        hub.gate.set()
        assert (await pulled(client))[-1] == {"status": "success"}
        await until(lambda: children[0].status is not None)
        await until(lambda: pulls.num_running == 0)

    with_hub(monkeypatch, work, Repo(FILES), rig)


def test_a_download_whose_process_dies_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    children = noted_children(monkeypatch)

    async def work(client: Client, hub: LocalHub) -> None:
        hub.gate.clear()
        task = asyncio.ensure_future(pulled(client))
        await until(lambda: hub.ranges_of("model.safetensors"))
        children[0].send_signal(9)
        assert "ended before it was complete" in (await task)[-1]["error"]
        hub.gate.set()
        assert (await pulled(client))[-1] == {"status": "success"}

    with_hub(monkeypatch, work, Repo(FILES))


def test_names() -> None:
    assert pulled_name("org/m") == ("org/m", "")
    assert pulled_name("org/m:Q4_K_M") == ("org/m", "Q4_K_M")
    assert pulled_name("HF.co/org/m:latest") == ("org/m", "")
    assert pulled_name("huggingface.co/org/m:q8_0") == ("org/m", "q8_0")
    for name in ("llama3.2", "llama3.2:latest", "registry.ollama.ai/library/llama3.2"):
        assert pulled_name(name) == ("registry.ollama.ai/library/llama3.2:latest", "")
    for name in ("../x", "a/../b", "/etc/passwd", "a/b/c", "org/m:a/b", "org/ m"):
        with pytest.raises(RequestError):
            pulled_name(name)


def test_nothing_is_pushed() -> None:
    async def main() -> None:
        async with any_rig().client() as client:
            answer = await client.post("/api/push", json={"model": "a"})
            assert (answer.status_code, set(answer.json())) == (404, {"error"})

    asyncio.run(main())


async def until(is_so: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + 25
    while not is_so():
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.02)

"""Pulling over HTTP from Ollama's registry on this machine, and what goes wrong with it."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import resource
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from dovetail.cli.main import main as command
from dovetail_plugins.model_stores.ollama import find, models
from dovetail_plugins.modelfile.stored import find_manifest, of_manifest
from dovetail_plugins.ollama_registry.fetching import fetch_model
from dovetail_plugins.ollama_registry.names import RegistryName, registry_name
from support.any_models import any_rig, demo_gguf, own_stores
from support.fake_models import Rig
from support.fake_registry import FakeRegistry, digest_of

Client = httpx.AsyncClient
LICENSE = b"Do as you like. " * 20
PARAMS = json.dumps({"temperature": 0.25, "stop": ["<|end|>"]}).encode()
LAYERS = (
    ("license", LICENSE),
    ("template", b"{{ .System }} {{ .Prompt }}"),
    ("system", b"Be brief."),
    ("params", PARAMS),
)
CONFIG = json.dumps({"model_family": "qwen2", "file_type": "F32"}).encode()


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return demo_gguf(tmp_path_factory.mktemp("gguf"))


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gguf: bytes) -> Any:
    own_stores(tmp_path, monkeypatch)
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    with FakeRegistry() as found:
        monkeypatch.setenv("OLLAMA_REGISTRY", found.url)
        found.add("library/tiny:1b", ("model", gguf), *LAYERS, config=CONFIG)
        yield found


def with_client(work: Callable[[Client], Awaitable[Any]], rig: Rig | None = None) -> Any:
    async def main() -> Any:
        async with (rig or any_rig()).client() as client:
            return await work(client)

    return asyncio.run(main())


async def pulled(client: Client, model: str = "tiny:1b", **more: Any) -> list[dict[str, Any]]:
    answer = await client.post("/api/pull", json={"model": model} | more)
    assert answer.status_code == 200, answer.text
    return [json.loads(line) for line in answer.text.splitlines()]


def blobs(tmp_path: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (tmp_path / "ollama/blobs").iterdir()}


def test_a_model_arrives_in_ollamas_layout_and_can_be_named(
    registry: FakeRegistry, tmp_path: Path, gguf: bytes
) -> None:
    async def work(client: Client) -> None:
        assert (await client.post("/v1/completions", json={"model": "tiny:1b"})).status_code == 404
        lines = await pulled(client)
        texts = [line["status"] for line in lines]
        assert texts[0] == "pulling manifest"
        assert texts[-2:] == ["writing manifest", "success"]
        assert "verifying sha256 digest" in texts
        own = [line for line in lines if line.get("digest") == digest_of(gguf)]
        assert own[0]["status"] == f"pulling {digest_of(gguf)[7:19]}"
        assert own[0]["completed"] == 0
        assert own[-1]["completed"] == own[-1]["total"] == len(gguf)
        assert [line["completed"] for line in own] == sorted(line["completed"] for line in own)
        after = await client.post("/v1/completions", json={"model": "tiny:1b"})
        assert after.json()["by"] == "tiny:1b"
        num_asked = len(registry.asked)
        again = await pulled(client, "registry.ollama.ai/library/tiny:1b")
        assert again[-1] == {"status": "success"} and len(registry.asked) == num_asked

    with_client(work)
    store = tmp_path / "ollama"
    contents = [gguf, CONFIG, *(data for _, data in LAYERS)]
    assert blobs(tmp_path) == {digest_of(d).replace(":", "-"): d for d in contents}
    manifest = store / "manifests/registry.ollama.ai/library/tiny/1b"
    assert manifest.read_bytes() == registry.models["library/tiny:1b"]
    (model,) = models(store)
    assert (model.name, model.label, model.fault) == ("tiny:1b", "F32", "")
    written = of_manifest(manifest, store)
    assert written.system == "Be brief." and written.parameters["temperature"] == 0.25


def test_a_cut_connection_is_taken_up_where_it_broke(registry: FakeRegistry, gguf: bytes) -> None:
    registry.cuts[digest_of(gguf)] = [600_000, 700_000]
    registry.statuses[digest_of(LICENSE)] = [503, 502]
    assert with_client(pulled)[-1] == {"status": "success"}
    assert registry.ranges_of(gguf) == ["", "600000-", "1300000-"]


def test_a_registry_without_ranges_sends_all_again(
    registry: FakeRegistry, tmp_path: Path, gguf: bytes
) -> None:
    registry.cuts[digest_of(gguf)] = [600_000]
    registry.refuses_ranges = True
    assert with_client(pulled)[-1] == {"status": "success"}
    assert blobs(tmp_path)[digest_of(gguf).replace(":", "-")] == gguf


def test_a_pull_that_broke_off_is_taken_up_by_the_next(
    registry: FakeRegistry, tmp_path: Path, gguf: bytes
) -> None:
    registry.cuts[digest_of(gguf)] = [600_000, 0, 0, 0, 0, 0]
    lines = with_client(pulled)
    assert "broke off at byte 600000 of" in lines[-1]["error"]
    assert find(tmp_path / "ollama", "tiny:1b") is None
    assert with_client(pulled)[-1] == {"status": "success"}
    assert registry.ranges_of(gguf)[-1] == "600000-"


def test_a_wrong_digest_is_an_error_and_leaves_no_model(
    registry: FakeRegistry, tmp_path: Path, gguf: bytes
) -> None:
    for right in (gguf, PARAMS, CONFIG):
        for wrong in (right[:-1] + bytes([right[-1] ^ 1]), right + b"more"):
            registry.wrong[digest_of(right)] = wrong
            lines = with_client(pulled)
            if len(wrong) == len(right):  # else what is too long is not read
                assert f"checksum {digest_of(right)}" in lines[-1]["error"]
                assert find(tmp_path / "ollama", "tiny:1b") is None
            registry.wrong.clear()
        assert with_client(pulled)[-1] == {"status": "success"}
        (tmp_path / "ollama/manifests/registry.ollama.ai/library/tiny/1b").unlink()
        for path in (tmp_path / "ollama/blobs").iterdir():
            path.unlink()


def test_a_full_disk_is_said_and_the_rest_fetched_later(
    registry: FakeRegistry, gguf: bytes
) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    async def work(client: Client) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(gguf) // 2, limits[1]))
        try:
            lines = await pulled(client)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert "is full" in lines[-1]["error"] and "OLLAMA_MODELS" in lines[-1]["error"]
        assert (await pulled(client))[-1] == {"status": "success"}
        assert registry.ranges_of(gguf) == ["", f"{len(gguf) // 2}-"]

    with_client(work)


def test_too_little_room_is_said_before_anything_is_fetched(
    registry: FakeRegistry, gguf: bytes
) -> None:
    manifest = json.loads(registry.models["library/tiny:1b"])
    manifest["layers"][0]["size"] = 1 << 60
    registry.models["library/tiny:1b"] = json.dumps(manifest).encode()
    assert "is full" in with_client(pulled)[-1]["error"]
    assert registry.ranges_of(gguf) == []


def test_pulls_of_one_model_share_a_download(registry: FakeRegistry, gguf: bytes) -> None:
    async def work(client: Client) -> None:
        registry.gate.clear()
        names = ("tiny:1b", "registry.ollama.ai/library/tiny:1b", "ollama.com/library/tiny:1b")
        tasks = [asyncio.ensure_future(pulled(client, name)) for name in names]
        while not registry.ranges_of(gguf):
            await asyncio.sleep(0.02)
        await asyncio.sleep(0.1)
        registry.gate.set()
        for lines in await asyncio.gather(*tasks):
            assert lines[-1] == {"status": "success"}
        assert registry.ranges_of(gguf) == [""]

    with_client(work)


def _fetch(tag: str) -> None:
    name = RegistryName(namespace="library", model="tiny", tag=tag)
    fetch_model(name, tell=lambda *_: None, say=lambda _: None)


def test_processes_that_want_one_blob_fetch_it_once(
    registry: FakeRegistry, tmp_path: Path, gguf: bytes
) -> None:
    registry.add("library/tiny:other", ("license", LICENSE), ("model", gguf), config=CONFIG)
    registry.gate.clear()
    context = multiprocessing.get_context("spawn")
    children = [context.Process(target=_fetch, args=(tag,)) for tag in ("1b", "other", "1b")]
    for child in children:
        child.start()
    registry.gate.set()
    for child in children:
        child.join(60)
        assert child.exitcode == 0
    assert registry.ranges_of(gguf) == [""]
    assert {model.name for model in models(tmp_path / "ollama")} == {"tiny:1b", "tiny:other"}


def test_what_the_registry_does_not_have(
    registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, gguf: bytes
) -> None:
    registry.add("library/cloud:big", ("license", LICENSE))
    registry.models["library/odd:a"] = b"<html>"
    registry.models["library/odd:b"] = json.dumps(
        {"config": {"digest": "sha256:../../x", "size": 2}, "layers": []}
    ).encode()
    registry.add("library/gone:a", ("model", gguf))
    del registry.blobs[digest_of(b"{}")]

    def said(name: str) -> str:
        return str(with_client(lambda client: pulled(client, name))[-1]["error"])

    assert "does not have it" in said("tiny:2b")
    assert "its own servers" in said("cloud:big")
    assert "is not a manifest" in said("odd:a") and "is not a manifest" in said("odd:b")
    assert "does not have it" in said("gone:a")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "HF_HUB_OFFLINE" in said("tiny:1b")
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setenv("OLLAMA_REGISTRY", "http://127.0.0.1:9")
    assert "cannot be reached" in said("tiny:1b")
    monkeypatch.setenv("OLLAMA_MODELS", "/proc/ollama")
    assert "cannot be written" in said("tiny:1b")
    assert list(models(tmp_path / "ollama")) == []


def test_a_pulled_model_is_deleted_with_its_own_blobs(
    registry: FakeRegistry, tmp_path: Path, gguf: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    registry.add("library/tiny:other", ("license", LICENSE), ("model", gguf + b"0"))

    async def work(client: Client) -> None:
        for name in ("tiny:1b", "tiny:other"):
            assert (await pulled(client, name))[-1] == {"status": "success"}
        answer = await client.request("DELETE", "/api/delete", json={"model": "tiny:1b"})
        assert answer.status_code == 200, answer.text
        assert (await client.post("/v1/completions", json={"model": "tiny:1b"})).status_code == 404

    with_client(work)
    left = {digest_of(d).replace(":", "-") for d in (LICENSE, gguf + b"0", b"{}")}
    assert set(blobs(tmp_path)) == left
    assert find_manifest("tiny:1b") is None
    assert command(["rm", "tiny:other", "--yes"]) == 0
    assert "tiny:other is deleted" in capsys.readouterr().out
    assert blobs(tmp_path) == {}


def test_the_command_pulls_by_tag_or_host(
    registry: FakeRegistry, tmp_path: Path, gguf: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    registry.add("me/own:latest", ("model", gguf))
    assert command(["pull", "tiny:1b"]) == 0
    assert command(["pull", "registry.ollama.ai/me/own"]) == 0
    said = capsys.readouterr().out
    assert "dovetail serve tiny:1b" in said and "dovetail serve me/own:latest" in said
    assert {model.name for model in models(tmp_path / "ollama")} == {"tiny:1b", "me/own:latest"}
    assert command(["pull", "tiny:none"]) == 2
    assert "does not have it" in capsys.readouterr().err


def test_names() -> None:
    def full(text: str) -> str | None:
        found = registry_name(text)
        return None if found is None else found.full

    assert full("llama3.2") == "registry.ollama.ai/library/llama3.2:latest"
    assert full("llama3.2:1b") == "registry.ollama.ai/library/llama3.2:1b"
    assert full("Ollama.com/library/a") == full("registry.ollama.ai/a") == full("a")
    assert full("registry.ollama.ai/me/a:x") == "registry.ollama.ai/me/a:x"
    for text in (
        "org/model", "hf.co/org/model", "..", ".a", "a:..", "a:b/c", "a b", "", "a\0", "a" * 81,
        "registry.ollama.ai/a/b/c", "registry.ollama.ai/../b", "registry.ollama.ai/",
    ):  # fmt: skip
        assert full(text) is None, text

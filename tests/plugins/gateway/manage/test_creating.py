"""Models made of others and of uploaded files, and their copies."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from dovetail_plugins.created_models.store import CreatedStore
from dovetail_plugins.gateway.server import child_fields
from dovetail_plugins.modelfile.model import Modelfile
from support.any_models import any_rig, cache_demo, demo_files, demo_gguf, digest_of, own_stores
from support.fake_models import Rig

Client = httpx.AsyncClient


@pytest.fixture(autouse=True)
def stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    own_stores(tmp_path, monkeypatch)
    return tmp_path


def within(rig: Rig, work: Callable[[Client], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        async with rig.client() as client:
            return await work(client)

    return asyncio.run(main())


def statuses(answer: httpx.Response) -> list[str]:
    assert answer.status_code == 200, answer.text
    return [json.loads(line)["status"] for line in answer.text.splitlines()]


def stored_modelfile(name: str) -> Modelfile:
    record = CreatedStore().get(name)
    assert record is not None
    return record.modelfile


async def upload(client: Client, content: bytes) -> str:
    digest = digest_of(content)
    answer = await client.post(f"/api/blobs/{digest}", content=content)
    assert answer.status_code in (200, 201), answer.text
    return digest


def test_a_model_with_settings_of_its_own(stores: Path) -> None:
    cache_demo(stores)
    rig = any_rig()
    body = {
        "model": "mario",
        "from": "org/model",
        "system": 'You are "Mario".',
        "template": "{{ .Prompt }}",
        "parameters": {"temperature": 0.5, "num_ctx": 64, "stop": ["a", "b"]},
        "messages": [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "it's me"},
        ],
        "license": ["MIT"],
    }

    async def work(client: Client) -> dict[str, Any]:
        said = statuses(await client.post("/api/create", json=body))
        assert said[-2:] == ["writing manifest", "success"]
        ids = [one["id"] for one in (await client.get("/v1/models")).json()["data"]]
        assert ids == ["mario:latest", "org/model"]
        answer = await client.post("/v1/completions", json={"model": "mario", "prompt": "x"})
        assert answer.json()["by"] == "mario:latest"
        return child_fields(rig.fleet.models[0].entry, "/s")

    fields = within(rig, work)
    assert fields["chat_template"] == "{{ .Prompt }}"
    assert fields["override_generation_config"] == {"temperature": 0.5, "stop": ["a", "b"]}
    assert fields["max_model_len"] == 64
    assert fields["plugin_options"]["renderer"] == {
        "system": 'You are "Mario".', "messages": body["messages"],
    }  # fmt: skip
    assert Path(fields["model"]).parent.name == "snapshots"
    assert set(fields["served_model_name"]) == {"mario:latest", "mario"}


def test_a_created_model_as_a_base_adds_its_settings(stores: Path) -> None:
    cache_demo(stores)

    async def work(client: Client) -> None:
        first = {"model": "a", "from": "org/model", "system": "S", "parameters": {"top_k": 3}}
        second = {"model": "b", "from": "a", "parameters": {"temperature": 0}, "stream": False}
        statuses(await client.post("/api/create", json=first))
        answer = await client.post("/api/create", json=second)
        assert answer.json() == {"status": "success"}
        await client.request("DELETE", "/api/delete", json={"model": "a"})  # b does not need it

    within(any_rig(), work)
    modelfile = stored_modelfile("b:latest")
    assert (modelfile.base, modelfile.system) == ("org/model", "S")
    assert modelfile.parameters == {"top_k": 3, "temperature": 0.0}


def test_uploaded_files_are_models(stores: Path) -> None:
    content = demo_gguf(stores / "made")
    rig = any_rig()

    async def work(client: Client) -> None:
        digest = digest_of(content)
        assert (await client.head(f"/api/blobs/{digest}")).status_code == 404
        assert (await client.post(f"/api/blobs/{digest}", content=content)).status_code == 201
        assert (await client.head(f"/api/blobs/{digest}")).status_code == 200
        assert (await client.post(f"/api/blobs/{digest}", content=content)).status_code == 200
        body = {"model": "up", "files": {"demo.gguf": digest}}
        assert f"using existing layer {digest}" in statuses(
            await client.post("/api/create", json=body)
        )
        files = {name: await upload(client, data) for name, data in demo_files().items()}
        body = {"model": "whole:v1", "files": files}
        statuses(await client.post("/api/create", json=body))
        older = {"model": "older", "modelfile": f"FROM @{digest}\nSYSTEM hi"}
        statuses(await client.post("/api/create", json=older))
        for name in ("up", "whole:v1", "older"):
            answer = await client.post("/v1/completions", json={"model": name, "prompt": "x"})
            assert answer.json()["by"].startswith(name)
        rows = {one["name"]: one for one in (await client.get("/api/tags")).json()["models"]}
        assert set(rows) >= {"up:latest", "whole:v1", "older:latest"} - {
            model.name for model in rig.fleet.models
        }

    within(rig, work)
    paths = {model.name: Path(str(model.entry.config.model.model)) for model in rig.fleet.models}
    assert paths["up:latest"].read_bytes() == content
    assert (paths["whole:v1"] / "config.json").is_file()


def test_files_go_with_the_last_model_that_uses_them(stores: Path) -> None:
    content = demo_gguf(stores / "made")
    store = CreatedStore()

    async def work(client: Client) -> None:
        digest = await upload(client, content)
        blob = store.blobs.path(digest.removeprefix("sha256:"))
        statuses(await client.post("/api/create", json={"model": "a", "files": {"a.gguf": digest}}))
        copied = await client.post("/api/copy", json={"source": "a", "destination": "x/b:1"})
        assert (copied.status_code, copied.content) == (200, b"")
        await client.request("DELETE", "/api/delete", json={"model": "a"})
        assert blob.exists()
        answer = await client.post("/v1/completions", json={"model": "x/b:1", "prompt": "x"})
        assert answer.json()["by"] == "x/b:1"
        await client.request("DELETE", "/api/delete", json={"model": "x/b:1"})
        assert not blob.exists()

    within(any_rig(), work)
    assert list(store.names()) == []


def test_a_model_made_anew_is_served_anew(stores: Path) -> None:
    cache_demo(stores)
    rig = any_rig()

    async def work(client: Client) -> None:
        for text in ("one", "two"):
            body = {"model": "m", "from": "org/model", "system": text}
            statuses(await client.post("/api/create", json=body))
            await client.post("/v1/completions", json={"model": "m", "prompt": "x"})
            (model,) = rig.fleet.models
            own = model.entry.config.plugin.options_of("renderer")
            assert text in str(own)

    within(rig, work)
    assert rig.names_started() == ["m:latest", "m:latest"]


HOSTILE: list[tuple[dict[str, Any], int, str]] = [
    ({"from": "/etc/passwd"}, 404, "not a model of this machine"),
    ({"from": "../../etc"}, 404, "not a model of this machine"),
    ({"from": "~/.ssh/id_rsa"}, 404, "not a model of this machine"),
    ({"from": "a\0b/c"}, 404, "not a model of this machine"),
    ({"from": "nobody/nothing"}, 404, "pull it first"),
    ({"modelfile": "FROM /etc/passwd"}, 404, "not a model of this machine"),
    ({"modelfile": "FROM org/model\nADAPTER /etc/passwd"}, 400, "was not uploaded"),
    ({"modelfile": "FROM org/model\nFROM /etc/passwd"}, 400, "FROM"),
    ({"modelfile": "FROM org/model\nNONSENSE x"}, 400, "NONSENSE"),
    ({"from": "org/model", "files": {"../x.gguf": "sha256:" + "0" * 64}}, 404, "upload it first"),
    ({"files": {"x.gguf": "sha256:../../../etc/passwd"}}, 400, "not a digest"),
    ({"files": {"x.gguf": "0" * 64}}, 400, "not a digest"),
    ({}, 400, "model is missing"),
    ({"from": "org/model", "parameters": {"temperature": "hot"}}, 400, "temperature"),
    ({"from": "org/model", "parameters": {"num_ctx": 10**9}}, 400, "max-model-len"),
    ({"from": "org/model", "parameters": {"nonsense": 1}}, 400, "nonsense"),
    ({"from": "org/model", "messages": [{"role": "x", "content": ""}]}, 400, "role"),
    ({"from": "org/model", "quantize": "q9"}, 400, "must be one of bf16, f16,"),
    ({"from": 3}, 400, "another kind"),
]


@pytest.mark.parametrize(("fields", "status", "said"), HOSTILE)
def test_what_cannot_be_made_is_refused_and_leaves_nothing(
    stores: Path, fields: dict[str, Any], status: int, said: str
) -> None:
    cache_demo(stores)

    async def work(client: Client) -> None:
        answer = await client.post("/api/create", json={"model": "m"} | fields)
        assert answer.status_code == status, answer.text
        assert said in answer.json()["error"]

    within(any_rig(), work)
    assert list(CreatedStore().names()) == []


def test_names_of_files_are_never_paths(stores: Path) -> None:
    async def work(client: Client) -> None:
        digest = await upload(client, b"GGUF")
        for name in ("../x.gguf", "/etc/x.gguf", "a/b.gguf", "..", ".hidden", "", "x\0.gguf"):
            answer = await client.post("/api/create", json={"model": "m", "files": {name: digest}})
            assert answer.status_code == 400
            assert "without folders" in answer.json()["error"]

    within(any_rig(), work)


@pytest.mark.parametrize(
    "name", ["../x", "/x", "a/../b", "a//b", "a b", "x:y:z", "..", "a/b/c/d", "é", "x" * 200, "a\0"]
)
def test_names_of_models_are_never_paths(stores: Path, name: str) -> None:
    cache_demo(stores)

    async def work(client: Client) -> None:
        made = await client.post("/api/create", json={"model": name, "from": "org/model"})
        copied = await client.post("/api/copy", json={"source": "org/model", "destination": name})
        assert (made.status_code, copied.status_code) == (400, 400)

    within(any_rig(), work)
    assert not (stores / "data").exists()


def test_a_file_that_is_no_model_leaves_the_older_model(stores: Path) -> None:
    cache_demo(stores)
    good = demo_gguf(stores / "made")

    async def work(client: Client) -> None:
        digest = await upload(client, good)
        body = {"model": "m", "files": {"m.gguf": digest}, "system": "first"}
        statuses(await client.post("/api/create", json=body))
        bad = await upload(client, good[:2000])
        answer = await client.post("/api/create", json={"model": "m", "files": {"m.gguf": bad}})
        assert answer.status_code == 400
        taken = await client.post("/api/create", json={"model": "m", "from": "m", "system": "2"})
        assert taken.status_code == 200

    within(any_rig(), work)
    assert stored_modelfile("m:latest").system == "2"


def test_names_of_other_stores_are_not_taken(stores: Path) -> None:
    from support.model_stores import add_to_ollama

    cache_demo(stores)
    add_to_ollama(stores / "ollama", "registry.ollama.ai/library/own:latest", b"GGUF")

    async def work(client: Client) -> None:
        for name in ("own", "static:latest"):
            answer = await client.post("/api/create", json={"model": name, "from": "org/model"})
            assert "belongs to a model of" in answer.json()["error"]

    within(any_rig("static:latest"), work)


def test_a_base_that_is_gone_is_said(stores: Path) -> None:
    cache_demo(stores)

    async def work(client: Client) -> None:
        await client.post("/api/copy", json={"source": "org/model", "destination": "c"})
        await client.delete("/v1/models/org/model")
        answer = await client.post("/v1/completions", json={"model": "c", "prompt": "x"})
        assert answer.status_code == 400
        assert "its base org/model is gone" in answer.text
        (card,) = (await client.get("/v1/models")).json()["data"]
        assert card["fault"] == "its base org/model is gone"

    within(any_rig(), work)


def test_an_adapter_answers_under_every_name_of_its_model(stores: Path) -> None:
    cache_demo(stores)
    store = CreatedStore()
    rig = any_rig()

    async def work(client: Client) -> None:
        config = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"]}
        files = {
            "adapter_config.json": json.dumps(config).encode(),
            "adapter_model.safetensors": b"weights",
        }
        digests = {name: await upload(client, data) for name, data in files.items()}
        body = {"model": "tuned", "from": "org/model", "adapters": digests}
        statuses(await client.post("/api/create", json=body))
        await client.post("/v1/completions", json={"model": "tuned", "prompt": "x"})

    within(rig, work)
    (model,) = rig.fleet.models
    fields = child_fields(model.entry, "/s")
    assert set(fields["served_model_name"]) == {"tuned:latest-base"}
    names = {one.partition("=")[0] for one in model.entry.config.lora.lora_modules}
    assert names == {"tuned:latest", "tuned"}
    assert store.used()

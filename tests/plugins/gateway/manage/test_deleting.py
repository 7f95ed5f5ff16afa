"""Deleting models over HTTP: only from the hub's cache and of created ones, and none in use."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest

from support.any_models import any_rig, cache_demo, own_stores


@pytest.fixture(autouse=True)
def stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    own_stores(tmp_path, monkeypatch)
    return tmp_path


async def delete(client: httpx.AsyncClient, **body: str) -> httpx.Response:
    return await client.request("DELETE", "/api/delete", json=body)


def test_a_loaded_model_is_deleted_once_its_requests_have_ended(stores: Path) -> None:
    snapshot = cache_demo(stores)
    rig = any_rig()

    async def main() -> None:
        async with rig.client() as client:
            body = {"model": "org/model", "stream": True}
            stream = asyncio.ensure_future(client.post("/v1/completions", json=body))
            while not rig.fleet.models or not rig.fleet.models[0].num_running:
                await asyncio.sleep(0.002)
            deletion = asyncio.ensure_future(delete(client, model="org/model"))
            await asyncio.sleep(0.05)
            assert not deletion.done()
            assert (snapshot / "model.safetensors").exists()
            rig.started[0].gate.set()
            assert (await stream).text.endswith("[DONE]\n\n")
            assert (await deletion).status_code == 200
            assert not snapshot.exists()
            assert rig.fleet.models == ()
            again = await delete(client, name="org/model")
            assert (again.status_code, set(again.json())) == (404, {"error"})

    asyncio.run(main())


def test_openais_way(stores: Path) -> None:
    snapshot = cache_demo(stores)

    async def main() -> None:
        async with any_rig().client() as client:
            answer = await client.delete("/v1/models/org/model")
            assert answer.json() == {"id": "org/model", "object": "model", "deleted": True}
            assert (await client.delete("/v1/models/org/model")).status_code == 404

    asyncio.run(main())
    assert not snapshot.exists()


def test_what_is_not_deleted_says_who_deletes_it(stores: Path) -> None:
    folder = stores / "folder"
    (folder / "mine").mkdir(parents=True)
    for name in ("config.json", "model.safetensors"):
        (folder / "mine" / name).write_bytes(b"{}")
    rig = any_rig("static", config={"model_dir": [str(folder)]})

    async def main() -> None:
        async with rig.client() as client:
            for name, said in (
                ("mine", "delete it yourself"),
                ("static", "named when the server started"),
            ):
                answer = await delete(client, model=name)
                assert answer.status_code == 400
                assert said in answer.json()["error"]

    asyncio.run(main())
    assert (folder / "mine" / "config.json").exists()


@pytest.mark.parametrize("name", ["../hub", "/etc", "..", "org/../../x", "a\0b", "--", "x" * 5000])
def test_names_are_never_paths(stores: Path, name: str) -> None:
    snapshot = cache_demo(stores)

    async def main() -> None:
        async with any_rig().client() as client:
            assert (await delete(client, model=name)).status_code == 404

    asyncio.run(main())
    assert snapshot.exists()
    assert stores.exists()


def test_without_any_models_nothing_is_deleted() -> None:
    from support.fake_models import Rig

    async def main() -> None:
        async with Rig("a").client() as client:
            answer = await delete(client, model="a")
            assert "--models any" in answer.json()["error"]

    asyncio.run(main())

"""Loading and unloading models over HTTP."""

from __future__ import annotations

import asyncio
from datetime import datetime

from support.fake_models import SIZE, Rig


def test_models_are_loaded_and_unloaded_by_request() -> None:
    rig = Rig("a", "b,b2", idle_after_s=60.0)

    async def main() -> None:
        async with rig.client() as client:
            loaded = await client.post("/models/load", json={"model": "b2"})
            assert (loaded.status_code, loaded.json()) == (200, {"success": True})
            cards = {one["id"]: one for one in (await client.get("/models")).json()["data"]}
            assert cards["a"]["status"] == {"value": "unloaded"}
            assert cards["b"]["status"] == cards["b2"]["status"] == {"value": "loaded"}
            card = (await client.get("/v1/models/b")).json()
            assert card["needed_bytes"] == SIZE
            assert 0 < (datetime.fromisoformat(card["expires_at"]).timestamp()) - _now_s() <= 60
            assert "expires_at" not in cards["a"]
            gone = await client.post("/models/unload", json={"model": "b"})
            assert gone.json() == {"success": True}
            again = await client.post("/models/unload", json={"model": "b"})
            assert again.json() == {"success": True}

    asyncio.run(main())
    assert rig.names_started() == ["b"]
    assert not rig.models[1].is_resident


def test_an_unload_waits_for_requests_that_run() -> None:
    rig = Rig("a")

    async def main() -> None:
        async with rig.client() as client:
            body = {"model": "a", "stream": True}
            stream = asyncio.ensure_future(client.post("/v1/completions", json=body))
            while not rig.models[0].num_running:
                await asyncio.sleep(0.002)
            unload = asyncio.ensure_future(client.post("/models/unload", json={"model": "a"}))
            await asyncio.sleep(0.05)
            assert not unload.done()
            rig.started[0].gate.set()
            assert (await stream).text.endswith("[DONE]\n\n")
            assert (await unload).json() == {"success": True}

    asyncio.run(main())


def test_faults_are_said() -> None:
    rig = Rig("a")
    rig.fails_starts = True

    async def main() -> None:
        async with rig.client() as client:
            for body, status in (({"model": "x"}, 404), ({}, 400), ({"model": 3}, 400)):
                assert (await client.post("/models/load", json=body)).status_code == status
            broken = await client.post("/models/unload", content=b"{")
            assert "not valid JSON" in broken.json()["error"]["message"]
            failed = await client.post("/models/load", json={"model": "a"})
            assert failed.status_code == 503
            assert "could not be loaded" in failed.json()["error"]["message"]

    asyncio.run(main())


def _now_s() -> float:
    return datetime.now().timestamp()

"""What one API key stores is out of another's reach: also by a batch, and when room runs out."""

from __future__ import annotations

import asyncio
import io
import json
from pathlib import Path
from typing import Any

import pytest

from dovetail.errors import NotFound
from dovetail_plugins.apis.responses.conversations import ConversationStore
from dovetail_plugins.apis.responses.store import ResponseStore
from dovetail_testing.fakes.adapters import fake_room
from dovetail_testing.fakes.async_engine import FakeAsyncEngine, Script, fake_spec
from support.batches import begun, ended, lines, results, serving
from support.serving import app_for, send

RESPONSES = "/v1/responses"


def test_a_line_runs_as_the_key_that_made_the_batch(tmp_path: Path) -> None:
    engine = FakeAsyncEngine(Script(pieces=["ok"]))

    async def main() -> None:
        async with serving(tmp_path, engine, key="first", api_key=("first", "second")) as client:
            talk = await client.conversations.create(items=[])
            kept = await client.responses.create(model="fake", input="the word is plum")
            asks = lines(
                {"input": "hi", "conversation": talk.id},
                {"input": "hi", "previous_response_id": kept.id},
                url=RESPONSES,
            )
            stranger = client.with_options(api_key="second")
            crossed = await ended(stranger, await begun(stranger, asks, RESPONSES))
            codes = {
                name: row["response"]["status_code"]
                for name, row in (await results(stranger, crossed.error_file_id)).items()
            }
            assert codes == {"line-0": 404, "line-1": 400} and crossed.output_file_id is None
            assert not (await client.conversations.items.list(talk.id)).data
            done = await ended(client, await begun(client, asks, RESPONSES))
            assert done.request_counts.completed == 2
            # What a line stores is its owner's too.
            found = await results(client, done.output_file_id)
            made = found["line-0"]["response"]["body"]["id"]
            assert (await client.responses.retrieve(made)).id == made

    asyncio.run(main())


def test_without_configured_keys_a_line_still_runs_as_its_owner(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path, FakeAsyncEngine(), key="mine") as client:
            talk = await client.conversations.create(items=[])
            asks = lines({"input": "hi", "conversation": talk.id}, url=RESPONSES)
            assert (await ended(client, await begun(client, asks, RESPONSES))).output_file_id

    asyncio.run(main())


def test_a_batch_whose_key_was_removed_fails_and_says_so(tmp_path: Path) -> None:
    async def first() -> str:
        slow = FakeAsyncEngine(Script(pieces=["x"], step_s=60))
        async with serving(tmp_path, slow, key="old", api_key=("old", "new")) as client:
            return str((await begun(client, lines({"prompt": "a"}))).id)

    batch_id = asyncio.run(first())
    engine = FakeAsyncEngine()

    async def second() -> None:
        async with serving(tmp_path, engine, key="new", api_key=("new",)) as client:
            await ended(client, await begun(client, lines({"prompt": "b"})))

    asyncio.run(second())
    facts = json.loads((tmp_path / "batches" / f"{batch_id}.json").read_bytes())
    assert facts["status"] == "failed" and facts["faults"][0]["code"] == "api_key_removed"
    assert len(engine.asked) == 1


def test_only_the_key_that_loaded_an_adapter_may_change_it(tmp_path: Path) -> None:
    folder = tmp_path / "poems"
    folder.mkdir()
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    spec = fake_spec(room=fake_room(), adapters=())
    app, engine = app_for(
        engine=FakeAsyncEngine(spec=spec), allow_runtime_lora_updating=True, api_key=("a", "b")
    )
    body = {"lora_name": "poems", "lora_path": str(folder)}

    def ask(key: str, path: str, given: dict[str, Any]) -> int:
        answer = send(app, "POST", path, given, authorization=f"Bearer {key}")
        return int(answer.status_code)

    load, unload = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
    assert ask("a", load, body) == 200
    assert ask("b", "/v1/completions", {"prompt": "hi", "model": "poems"}) == 200
    assert ask("b", unload, {"lora_name": "poems"}) == 403
    assert ask("b", load, body | {"load_inplace": True}) == 403
    assert "poems" in engine.loaded
    assert ask("a", load, body | {"load_inplace": True}) == 200
    assert ask("a", unload, {"lora_name": "poems"}) == 200


class Live:
    def __init__(self, name: str) -> None:
        self.id = name

    def encoded(self) -> bytes:
        return b"x" * 1000


def test_one_key_pushes_out_only_its_own() -> None:
    responses = ResponseStore(max_bytes=10_000)
    talks = ConversationStore(max_bytes=10_000)
    mine = talks.begin("quiet", {"a": "b"})
    live = Live("quiet")
    responses.begin(live, "quiet", is_background=False)
    responses.settle(live, [])
    for number in range(200):
        loud = Live(f"loud{number}")
        responses.begin(loud, "loud", is_background=False)
        responses.settle(loud, [])
        last = talks.begin("loud", {"a": "x" * 500})
    assert responses.get("quiet", "quiet").reply
    assert talks.get(mine.id, "quiet") is mine
    assert responses.get("loud199", "loud").reply and talks.get(last.id, "loud") is last
    with pytest.raises(NotFound):
        responses.get("loud0", "loud")
    assert len(responses) < 10


def test_metadata_count_towards_the_bound() -> None:
    talks = ConversationStore(max_bytes=50_000)
    first = talks.begin("a", {})
    for _ in range(50):
        talks.begin("a", {str(n): "x" * 512 for n in range(16)})
    with pytest.raises(NotFound):
        talks.get(first.id, "a")


METADATA: list[tuple[dict[str, Any], bool]] = [
    ({str(n): "x" * 512 for n in range(16)}, True),
    ({"k" * 64: "v"}, True),
    ({str(n): "x" for n in range(17)}, False),
    ({"k" * 65: "v"}, False),
    ({"k": "x" * 513}, False),
]


@pytest.mark.parametrize(("metadata", "fits"), METADATA)
def test_metadata_have_the_bounds_of_openai(
    tmp_path: Path, metadata: dict[str, str], fits: bool
) -> None:
    app, _ = app_for()
    wanted = 200 if fits else 400
    for path, body in ((RESPONSES, {"input": "hi"}), ("/v1/conversations", {})):
        answer = send(app, "POST", path, body | {"metadata": metadata})
        assert answer.status_code == wanted, answer.text
        if not fits:
            assert answer.json()["error"]["param"].startswith("metadata")

    async def main() -> None:
        async with serving(tmp_path, FakeAsyncEngine()) as client:
            data = io.BytesIO(lines({"prompt": "a"}))
            file = await client.files.create(file=("a.jsonl", data), purpose="batch")
            body = {"input_file_id": file.id, "endpoint": "/v1/completions"}
            body |= {"completion_window": "24h", "metadata": metadata}
            raw = await client._client.post(
                "/v1/batches", json=body, headers={"authorization": "Bearer k"}
            )
            assert raw.status_code == wanted

    asyncio.run(main())

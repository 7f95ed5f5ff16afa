"""Files and batches by the openai client: answered, cancelled, refused, and gone on with."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import msgspec
import pytest

from dovetail.errors import ConfigError, RequestError
from dovetail_plugins.apis.batches import storage as storage_module
from dovetail_plugins.apis.batches.multipart import parts_of
from dovetail_plugins.apis.batches.runner import PRIORITY
from dovetail_plugins.apis.batches.storage import FileStorage
from dovetail_testing.fakes.async_engine import FakeAsyncEngine, Script
from support.batches import COMPLETIONS, begun, ended, lines, results, serving
from support.serving import USER, app_for, send

openai = pytest.importorskip("openai")


def test_a_batch_from_file_to_file(tmp_path: Path) -> None:
    """--file-storage (file_storage)"""
    engine = FakeAsyncEngine(lambda text, index: Script(pieces=[text.upper()]))

    async def main() -> None:
        async with serving(tmp_path, engine, api_key=("k", "other")) as client:
            batch = await begun(
                client, lines({"prompt": "a"}, {"prompt": "b", "n": 0}, {"prompt": "c"})
            )
            assert batch.status == "validating" and batch.metadata == {"a": "b"}
            done = await ended(client, batch)
            assert done.status == "completed"
            counts = done.request_counts
            assert (counts.total, counts.completed, counts.failed) == (3, 2, 1)
            found = await results(client, done.output_file_id)
            texts = {
                name: row["response"]["body"]["choices"][0]["text"] for name, row in found.items()
            }
            assert texts == {"line-0": "A", "line-2": "C"}
            wrong = await results(client, done.error_file_id)
            assert wrong["line-1"]["response"]["status_code"] == 400
            assert [one.id async for one in client.batches.list()] == [batch.id]
            assert {one.purpose async for one in client.files.list()} == {
                "batch", "batch_output", "batch_error",
            }  # fmt: skip
            stranger = client.with_options(api_key="other")
            assert [one.id async for one in stranger.files.list()] == []
            with pytest.raises(openai.NotFoundError):
                await stranger.batches.retrieve(batch.id)
            assert (await client.files.delete(done.input_file_id)).deleted
            with pytest.raises(openai.NotFoundError):
                await client.files.retrieve(done.input_file_id)

    asyncio.run(main())
    assert all(asked[2]["priority"] == PRIORITY for asked in engine.asked)


def test_chats_and_a_priority_of_ones_own(tmp_path: Path) -> None:
    engine = FakeAsyncEngine()

    async def main() -> None:
        async with serving(tmp_path, engine) as client:
            data = lines({"messages": USER, "priority": 3}, url="/v1/chat/completions")
            done = await ended(client, await begun(client, data, "/v1/chat/completions"))
            assert done.status == "completed" and done.error_file_id is None

    asyncio.run(main())
    assert engine.asked[0][2]["priority"] == 3


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", "empty_file"),
        (b"{\n", "invalid_json"),
        (lines({"prompt": "a"}, url="/v1/responses"), "mismatched_url"),
        (lines({"prompt": "a"}) * 2, "duplicate_custom_id"),
        (lines({"prompt": "a", "stream": True}), "stream_in_batch"),
    ],
)
def test_an_input_that_is_wrong_is_told_line_by_line(
    tmp_path: Path, data: bytes, code: str
) -> None:
    engine = FakeAsyncEngine()

    async def main() -> None:
        async with serving(tmp_path, engine) as client:
            done = await ended(client, await begun(client, data))
            assert done.status == "failed"
            assert done.errors.data[0].code == code

    asyncio.run(main())
    assert not engine.asked


def test_a_restart_goes_on_and_answers_no_line_twice(tmp_path: Path) -> None:
    slow = FakeAsyncEngine(Script(pieces=["x"], step_s=0.05))
    bodies = [{"prompt": chr(97 + place)} for place in range(20)]

    async def first() -> str:
        async with serving(tmp_path, slow) as client:
            batch = await begun(client, lines(*bodies))
            while batch.request_counts.completed < 3:
                await asyncio.sleep(0.01)
                batch = await client.batches.retrieve(batch.id)
            return str(batch.id)

    batch_id = asyncio.run(first())
    (facts,) = tmp_path.glob("batches/*.json")
    output = tmp_path / "files" / f"{json.loads(facts.read_bytes())['output_file_id']}.bin"
    kept = {json.loads(row)["custom_id"] for row in output.read_bytes().splitlines()}
    assert 3 <= len(kept) < 20
    with output.open("ab") as file:
        file.write(b'{"id":"batch_req_torn')
    again = FakeAsyncEngine()

    async def second() -> None:
        async with serving(tmp_path, again) as client:
            done = await ended(client, await client.batches.retrieve(batch_id))
            assert done.status == "completed"
            assert done.request_counts.completed == 20
            assert len(await results(client, done.output_file_id)) == 20

    asyncio.run(second())
    assert len(again.asked) == 20 - len(kept)


def test_a_batch_is_cancelled(tmp_path: Path) -> None:
    engine = FakeAsyncEngine(Script(pieces=["x"], step_s=0.1))

    async def main() -> None:
        async with serving(tmp_path, engine) as client:
            batch = await begun(client, lines(*({"prompt": "a"} for _ in range(200))))
            while batch.status == "validating":
                await asyncio.sleep(0.01)
                batch = await client.batches.retrieve(batch.id)
            with pytest.raises(openai.BadRequestError):
                await client.files.delete(batch.input_file_id)
            assert (await client.batches.cancel(batch.id)).status == "cancelling"
            done = await ended(client, batch)
            assert done.status == "cancelled" and done.cancelled_at
            assert done.request_counts.completed < 200

    asyncio.run(main())


def test_a_long_batch_of_one_key_holds_up_none_of_another(tmp_path: Path) -> None:
    engine = FakeAsyncEngine(lambda text, index: Script(pieces=["x"], step_s=0.02))
    engine.spec = msgspec.structs.replace(
        engine.spec, schedule=msgspec.structs.replace(engine.spec.schedule, max_rows=2)
    )

    async def main() -> None:
        async with serving(tmp_path, engine, api_key=("k", "other")) as client:
            long = await begun(client, lines(*[{"prompt": f"p{n}"} for n in range(300)]))
            while not (await client.batches.retrieve(long.id)).request_counts.completed:
                await asyncio.sleep(0.01)
            stranger = client.with_options(api_key="other")
            short = await ended(stranger, await begun(stranger, lines({"prompt": "a"})))
            assert short.status == "completed" and short.request_counts.completed == 1
            left = await client.batches.retrieve(long.id)
            assert left.status == "in_progress" and left.request_counts.completed < 300
            await client.batches.cancel(long.id)
            await ended(client, long)

    asyncio.run(main())
    assert engine.most_running == 1  # both together take a part of the rows


def test_a_key_keeps_so_many_ended_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_module, "MAX_ENDED_BATCHES", 3)
    storage = FileStorage(str(tmp_path))
    made = []
    for number in range(5):
        storage.check_new_batch("mine")
        made.append(storage.new_batch("mine", COMPLETIONS, "file_x", None))
        made[-1].created_at = number
        storage.end_batch(made[-1], "completed")
        other = storage.new_batch(f"other{number}", COMPLETIONS, "file_x", None)
        storage.end_batch(other, "completed")
    assert [one.id for one in storage.batches("mine")] == [one.id for one in reversed(made[-3:])]
    assert len(storage.batches()) == 8


def test_clients_come_first(tmp_path: Path) -> None:
    engine = FakeAsyncEngine()
    waiting = [1]
    engine.load = lambda: (0, waiting[0])  # type: ignore[method-assign]

    async def main() -> None:
        async with serving(tmp_path, engine) as client:
            batch = await begun(client, lines({"prompt": "a"}))
            await asyncio.sleep(0.6)
            assert not engine.asked
            waiting[0] = 0
            assert (await ended(client, batch)).status == "completed"

    asyncio.run(main())


@pytest.mark.parametrize("name", ["../../etc/passwd", "file_" + "0" * 32, "x"])
def test_no_name_leads_out_of_the_folder(tmp_path: Path, name: str) -> None:
    async def main() -> None:
        async with serving(tmp_path, FakeAsyncEngine()) as client:
            for ask in (client.files.retrieve, client.files.content, client.batches.retrieve):
                with pytest.raises(openai.NotFoundError):
                    await ask(name)
            with pytest.raises(openai.APIStatusError):
                await client.batches.create(
                    input_file_id=name, endpoint=COMPLETIONS, completion_window="24h"
                )
            with pytest.raises(openai.BadRequestError):
                await client.files.create(file=b"x", purpose="assistants")

    asyncio.run(main())


def test_without_the_flag_there_are_none(tmp_path: Path) -> None:
    app, _ = app_for()
    error = send(app, "GET", "/v1/files").json()["error"]
    assert "--file-storage" in error["message"]
    blocker = tmp_path / "file"
    blocker.write_text("")
    with pytest.raises(ConfigError, match="--file-storage"):
        FileStorage(str(blocker / "x"))


FORM = (
    b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.jsonl"\r\n'
    b"Content-Type: application/octet-stream\r\n\r\n\x00\r\n\r\n--x\n\xff\r\n--b--\r\n"
)


def test_the_parts_of_a_form() -> None:
    found = parts_of("multipart/form-data; boundary=b", FORM)
    assert found["purpose"].data == b"batch"
    assert found["file"].filename == "a.jsonl"
    assert found["file"].data == b"\x00\r\n\r\n--x\n\xff"
    for kind, body in (
        ("application/json", FORM),
        ("multipart/form-data", FORM),
        ("multipart/form-data; boundary=b", FORM[:-8]),
        ("multipart/form-data; boundary=c", FORM),
        ("multipart/form-data; boundary=b", b"\r\n--b\r\n\r\n" * 99 + b"--b--"),
    ):
        with pytest.raises(RequestError):
            parts_of(kind, body)

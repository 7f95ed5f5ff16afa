"""Faults while batches run: nothing is lost, doubled or silent, and each batch still ends.

The faults come from a seed; DOVETAIL_FAULT_RUNS asks for more rounds than `make test` has.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dovetail.observability import supervise
from dovetail_plugins.apis.batches import disk, storage
from dovetail_plugins.apis.batches.disk import ResultFile, is_passing, mended_lines
from dovetail_plugins.apis.batches.runner import _Named
from dovetail_plugins.apis.batches.storage import FileStorage
from dovetail_testing.fakes.async_engine import FakeAsyncEngine, Script
from support.batches import begun, ended, lines, openai, results, serving, uploaded

RUNS = int(os.environ.get("DOVETAIL_FAULT_RUNS", "6"))
LACKS = (errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT, errno.ENOMEM)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(supervise, "FIRST_WAIT_S", 0.01)
    monkeypatch.setattr(supervise, "LAST_WAIT_S", 0.05)
    yield
    supervise._failed_s.clear()


def engine_for(step_s: float = 0.0) -> FakeAsyncEngine:
    return FakeAsyncEngine(lambda text, index: Script(pieces=[text.upper()], step_s=step_s))


class Faults:
    """Lets a share of the writes fail, before or after a part was written."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
        self._random = random.Random(seed)
        self.share = 0.0
        self.num = 0
        write, add = storage.write_whole, ResultFile.add

        def write_whole(path: Path, data: bytes, *, syncs: bool = True) -> None:
            self._maybe_fail()
            write(path, data, syncs=syncs)

        def add_line(file: ResultFile, line: bytes) -> None:
            self._maybe_fail()
            add(file, line)

        monkeypatch.setattr(storage, "write_whole", write_whole)
        monkeypatch.setattr(disk, "write_whole", write_whole)
        monkeypatch.setattr(ResultFile, "add", add_line)

    def _maybe_fail(self) -> None:
        if self._random.random() < self.share:
            self.num += 1
            number = self._random.choice(LACKS)
            raise OSError(number, os.strerror(number))


@pytest.mark.parametrize("seed", range(RUNS))
def test_lacks_that_pass_lose_and_double_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    faults = Faults(monkeypatch, seed)
    prompts = [f"p{n}" for n in range(30)]
    bodies = [{"prompt": prompt} for prompt in prompts] + [{"prompt": "x", "n": 0}]

    async def main() -> None:
        async with serving(tmp_path, engine_for()) as client:
            batch = await begun(client, lines(*bodies))
            faults.share = 0.2
            await asyncio.sleep(0.3)
            faults.share = 0.05
            done = await ended(client, batch)
            faults.share = 0.0
            assert done.status == "completed"
            counts = done.request_counts
            assert (counts.total, counts.completed, counts.failed) == (31, 30, 1)
            text = (await client.files.content(done.output_file_id)).text
            names = [json.loads(row)["custom_id"] for row in text.splitlines()]
            assert sorted(names) == sorted(f"line-{n}" for n in range(30)), "lost or doubled"
            found = await results(client, done.output_file_id)
            for n, prompt in enumerate(prompts):
                answer = found[f"line-{n}"]["response"]["body"]["choices"][0]["text"]
                assert answer == prompt.upper()
            assert len(await results(client, done.error_file_id)) == 1

    asyncio.run(main())
    assert not faults.num or "batches" in supervise.failing()
    assert not list(tmp_path.glob("*/*.new"))


@pytest.mark.parametrize("seed", range(RUNS))
def test_a_process_that_is_killed_at_any_write_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """A kill is a write after which nothing more is written until the next process."""
    chosen = random.Random(seed)
    write, add = storage.write_whole, ResultFile.add
    left = [10**9]

    class Killed(BaseException):
        pass

    def count() -> None:
        left[0] -= 1
        if left[0] < 0:
            raise Killed

    def write_whole(path: Path, data: bytes, *, syncs: bool = True) -> None:
        count()
        write(path, data, syncs=syncs)
        count()

    def add_line(file: ResultFile, line: bytes) -> None:
        if left[0] == 0:  # the kernel took a part of it
            file._file.write(line[: len(line) // 2])
        count()
        add(file, line)

    monkeypatch.setattr(storage, "write_whole", write_whole)
    monkeypatch.setattr(ResultFile, "add", add_line)

    async def make() -> str:
        async with serving(tmp_path, engine_for(step_s=60)) as client:
            return str((await begun(client, lines(*({"prompt": f"p{n}"} for n in range(20))))).id)

    async def run_until_killed() -> None:
        async with serving(tmp_path, engine_for()):
            left[0] = chosen.randrange(30)
            await asyncio.sleep(0.4)

    async def finish() -> None:
        left[0] = 10**9
        async with serving(tmp_path, engine_for()) as client:
            done = await ended(client, await client.batches.retrieve(batch_id))
            assert done.status == "completed" and done.request_counts.completed == 20
            text = (await client.files.content(done.output_file_id)).text
            assert len(text.splitlines()) == len(await results(client, done.output_file_id)) == 20
            listed = [one.id async for one in client.files.list()]
            assert sorted(listed) == sorted([done.input_file_id, done.output_file_id])

    batch_id = asyncio.run(make())
    for _ in range(3):
        try:
            asyncio.run(run_until_killed())
        except BaseException as error:
            assert isinstance(error, Killed) or "Killed" in repr(error)
    asyncio.run(finish())


def test_a_damaged_record_costs_only_itself(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with serving(tmp_path, engine_for()) as client:
            first = await ended(client, await begun(client, lines({"prompt": "a"})))
            other = await uploaded(client, lines({"prompt": "b"}))
            for path, text in (
                (tmp_path / "batches" / f"{first.id}.json", b'{"id": "batch_'),
                (tmp_path / "files" / f"{other.id}.json", b"\xff\x00"),
            ):
                path.write_bytes(text)
            assert [one.id async for one in client.batches.list()] == []
            assert other.id not in [one.id async for one in client.files.list()]
            for ask in (
                lambda: client.batches.retrieve(first.id),
                lambda: client.files.retrieve(other.id),
            ):
                with pytest.raises(openai.InternalServerError) as found:
                    await ask()
                assert found.value.code == "record_damaged"
            assert (await ended(client, await begun(client, lines({"prompt": "c"})))).output_file_id

    asyncio.run(main())
    assert sum("is damaged and left out" in text for text in caplog.messages) == 2


def test_a_damaged_result_is_answered_again(tmp_path: Path) -> None:
    path = tmp_path / "r.bin"
    path.write_bytes(b'{"id":"a"}\n{"id":\x00}\n{"id":"b"}\n{"id":"c')
    assert [one.id for one in mended_lines(path, _Named)] == ["a", "b"]
    assert path.read_bytes() == b'{"id":"a"}\n{"id":"b"}\n'


def test_a_line_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    class Full:
        """A disk that has room for three bytes at a time, and for ten in all."""

        def __init__(self, file: Any) -> None:
            self.file, self.left = file, 10

        def write(self, data: Any) -> int:
            if not self.left:
                raise OSError(errno.ENOSPC, "No space left on device")
            num = min(3, self.left, len(data))
            self.left -= num
            return int(self.file.write(bytes(data[:num])))

        def __getattr__(self, name: str) -> Any:
            return getattr(self.file, name)

    path = tmp_path / "r.bin"
    with ResultFile(path) as file:
        file._file = Full(file._file)  # type: ignore[assignment]
        file.add(b"first")
        with pytest.raises(OSError, match="No space"):
            file.add(b"second")
        assert path.read_bytes() == b"first\n"


def test_what_passes_is_told_from_what_stays() -> None:
    lack = OSError(errno.ENOSPC, "full")
    assert is_passing(lack) and is_passing(ExceptionGroup("lines", [lack, MemoryError()]))
    assert not is_passing(ExceptionGroup("lines", [lack, ValueError()]))
    assert not is_passing(OSError(errno.ENOENT, "gone"))


def test_a_full_disk_is_said_to_the_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    faults = Faults(monkeypatch, 0)

    async def main() -> None:
        async with serving(tmp_path, engine_for()) as client:
            faults.share = 1.0
            with pytest.raises(openai.APIStatusError) as found:
                await uploaded(client, lines({"prompt": "a"}))
            assert found.value.status_code == 507 and found.value.code == "storage_unavailable"

    asyncio.run(main())


def test_a_key_has_a_quota(tmp_path: Path) -> None:
    """--file-storage-quota (file_storage_quota)"""

    async def main() -> None:
        keys = ("a", "b")
        async with serving(
            tmp_path, engine_for(), key="a", api_key=keys, file_storage_quota=1000
        ) as client:
            await uploaded(client, b"x" * 900)
            with pytest.raises(openai.BadRequestError) as found:
                await uploaded(client, b"x" * 200)
            assert found.value.code == "file_quota_exceeded"
            await uploaded(client.with_options(api_key="b"), b"x" * 900)

    asyncio.run(main())


def test_a_quota_holds_for_uploads_that_come_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = storage.write_whole

    def slowly(path: Path, data: bytes, *, syncs: bool = True) -> None:
        time.sleep(0.05)
        write(path, data, syncs=syncs)

    monkeypatch.setattr(storage, "write_whole", slowly)

    async def main() -> None:
        async with serving(tmp_path, engine_for(), file_storage_quota=1000) as client:
            ends = await asyncio.gather(
                *(uploaded(client, b"x" * 300) for _ in range(6)), return_exceptions=True
            )
            assert sum(isinstance(end, openai.BadRequestError) for end in ends) >= 3
            assert sum([one.bytes async for one in client.files.list()]) <= 1000

    asyncio.run(main())


def test_what_was_left_half_written_is_removed(tmp_path: Path) -> None:
    held = FileStorage(str(tmp_path))
    facts = held.new_file("me", "a", "batch")
    held.keep_file(facts, b"whole")
    old, new = tmp_path / "files" / "file_1.ab.new", tmp_path / "files" / "file_2.ab.new"
    orphan = tmp_path / "files" / f"file_{'0' * 32}.bin"
    for path in (old, new, orphan):
        path.write_bytes(b"part")
    for path in (old, orphan, held.content(facts.id)):
        os.utime(path, (1, 1))
    held.tidy()
    assert new.exists() and not old.exists() and not orphan.exists()
    assert held.content(facts.id).read_bytes() == b"whole"

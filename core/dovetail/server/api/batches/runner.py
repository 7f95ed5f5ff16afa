"""BatchRunner: answers batches beside live traffic, a few lines at a time, and goes on after a
restart.

Lines wait while requests of clients wait, and take at most a part of the rows. Results are written
as they come; one whose line was torn by a crash is answered again.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING

import msgspec

from dovetail.server.api.batches.answer import Result, answer
from dovetail.server.api.batches.call import Caller
from dovetail.server.api.batches.lines import (
    BadLine,
    Line,
    custom_id_of,
    name_of_line,
    parse,
    read_lines,
)
from dovetail.server.api.batches.storage import BatchFacts, FileStorage, LineFault
from dovetail.server.http.owner import owner_of_key

if TYPE_CHECKING:
    from fastapi import FastAPI

    from dovetail.server.generate.server_state import ServerState

logger = logging.getLogger("dovetail.batch")
POLL_S = 0.2
RETRY_S = 0.5
PROGRESS_S = 0.1
SHARE = 2
"""A batch takes at most one of so many rows."""
MAX_FAULTS = 100
BUSY = 503
KEY_GONE = LineFault(
    code="api_key_removed",
    message="the API key that made this batch is not one of the server's any more. Start the "
    "server with it, or make the batch again with another key.",
)
PRIORITY = 1 << 20
"""What a line's request gets where it says none: after everybody else, where that is looked at."""


class BatchRunner:
    """Runs the batches of a folder, one after another, as long as `run` does."""

    def __init__(self, storage: FileStorage, max_line_bytes: int, keys: Sequence[str]) -> None:
        self.app: FastAPI | None = None
        self._storage = storage
        self._max_line_bytes = max_line_bytes
        self._keys = {owner_of_key(key): key for key in keys}
        self._closed: set[str] = set()
        self._kept_s = 0.0

    async def run(self) -> None:
        """Look for batches and answer them, until cancelled."""
        with (self._storage.folder / ".lock").open("ab") as lock:
            while not _locked(lock):
                await asyncio.sleep(POLL_S)  # another process of this server runs them
            while True:
                batch = None
                if self.app is not None:
                    batch = await asyncio.to_thread(self._storage.next_batch, self._closed)
                if batch is None:
                    await asyncio.sleep(POLL_S)
                    continue
                try:
                    await self._one(batch)
                except Exception:
                    logger.exception("batch %s failed", batch.id)
                    fault = LineFault(code="server_error", message="see the log of the server.")
                    batch.faults = [fault]
                    self._goes(batch, "failed")

    def _goes(self, batch: BatchFacts, status: str) -> None:
        batch.goes(status)
        self._storage.keep_batch(batch)

    async def _one(self, batch: BatchFacts) -> None:
        caller = self._caller_for(batch)
        if caller is None:
            batch.faults = [KEY_GONE]
            self._goes(batch, "failed")
            return
        path = self._storage.content(batch.input_file_id)
        if batch.status == "validating":
            batch.faults, batch.total = await asyncio.to_thread(self._checked, batch, path, caller)
            if batch.faults:
                self._goes(batch, "failed")
                return
            kinds = ("output", "error")
            made = [
                self._storage.new_file(batch.owner, f"{batch.id}_{kind}.jsonl", f"batch_{kind}")
                for kind in kinds
            ]
            batch.output_file_id, batch.error_file_id = (facts.id for facts in made)
            for facts in made:
                self._storage.keep_file(facts, b"")
            self._goes(batch, "in_progress")
        await self._answer_lines(batch, path, caller)

    def _caller_for(self, batch: BatchFacts) -> Caller | None:
        """Return who asks for the owner of a batch; None where its key is none of the server's any
        more, so that nothing may be asked for it."""
        assert self.app is not None
        if self._keys and batch.owner not in self._keys:
            return None
        return Caller(self.app, key=self._keys.get(batch.owner, ""), owner=batch.owner)

    def _checked(
        self, batch: BatchFacts, path: Path, caller: Caller
    ) -> tuple[list[LineFault], int]:
        """Return the faults of an input, and the number of its lines."""
        faults: list[LineFault] = []
        seen: set[str] = set()
        count = 0
        if not caller.takes(batch.endpoint):
            what = f"no route takes POST at {batch.endpoint[:256]!r}."
            return [LineFault(code="invalid_endpoint", message=what, param="endpoint")], 0
        for line in read_lines(path, self._max_line_bytes):
            count += 1
            try:
                request = parse(line)
                if request.url != batch.endpoint:
                    raise BadLine("mismatched_url", f"url: must be {batch.endpoint}.")
                if request.custom_id in seen:
                    raise BadLine("duplicate_custom_id", "custom_id: another line has it.")
                seen.add(request.custom_id)
            except BadLine as error:
                faults.append(LineFault(code=error.code, message=str(error), line=line.number))
            if len(faults) >= MAX_FAULTS:
                break
        if not count:
            faults.append(LineFault(code="empty_file", message="the input has no lines."))
        return faults, count

    async def _answer_lines(self, batch: BatchFacts, path: Path, caller: Caller) -> None:
        """Answer what has no result yet. Mutates: batch"""
        assert batch.output_file_id is not None and batch.error_file_id is not None
        assert self.app is not None
        server: ServerState = self.app.state.server
        ids = (batch.output_file_id, batch.error_file_id)
        good, bad = (_answered(self._storage.content(one)) for one in ids)
        batch.completed, batch.failed = len(good), len(bad)
        done = good | bad
        gate = asyncio.Semaphore(max(1, server.engine.spec.total_rows // SHARE))
        with (
            self._storage.content(ids[0]).open("ab", buffering=0) as output,
            self._storage.content(ids[1]).open("ab", buffering=0) as errors,
        ):
            end = await self._run_lines(
                batch, read_lines(path, self._max_line_bytes), caller, gate, done, output, errors
            )
        for file_id in ids:
            self._storage.keep_file(self._storage.file(file_id, batch.owner))
        self._drop_empty(batch)
        self._goes(batch, end)

    async def _run_lines(
        self,
        batch: BatchFacts,
        lines: Iterable[Line],
        caller: Caller,
        gate: asyncio.Semaphore,
        done: set[str],
        output: IO[bytes],
        errors: IO[bytes],
    ) -> str:
        """Answer lines side by side; return the state in which the batch ends."""

        async def one(line: Line, name: str, custom_id: str | None) -> None:
            try:
                result = await self._result(batch, line, name, custom_id, caller)
            finally:
                gate.release()
            if result is None:
                return
            (errors if result.is_failed else output).write(msgspec.json.encode(result) + b"\n")
            batch.failed += result.is_failed
            batch.completed += not result.is_failed
            self._keep_counts(batch)

        async with asyncio.TaskGroup() as group:
            for line in lines:
                custom_id = custom_id_of(line)
                name = name_of_line(line, custom_id)
                if name in done:
                    continue
                await gate.acquire()
                await self._wait_for_room()
                if self._end_of(batch) is not None:
                    break
                group.create_task(one(line, name, custom_id))
        return self._end_of(batch) or "completed"

    def _keep_counts(self, batch: BatchFacts) -> None:
        """Write how far a batch has come, now and then: the results say it again after a crash."""
        if time.monotonic() - self._kept_s > PROGRESS_S:
            self._kept_s = time.monotonic()
            self._storage.keep_batch(batch, syncs=False)

    def _end_of(self, batch: BatchFacts) -> str | None:
        """Return why a batch ends before its lines do."""
        if self._storage.is_cancelled(batch):
            return "cancelled"
        return "expired" if time.time() > batch.expires_at else None

    async def _wait_for_room(self) -> None:
        """Wait while requests of clients wait: they come first."""
        assert self.app is not None
        server: ServerState = self.app.state.server
        while server.engine.load()[1] > 0:
            await asyncio.sleep(POLL_S / 10)

    async def _result(
        self, batch: BatchFacts, line: Line, name: str, custom_id: str | None, caller: Caller
    ) -> Result | None:
        """Return a line's result; None where the batch ends first. A server that has no room, or
        is about to end, is asked again."""
        while True:
            result = await answer(_last_in_line(line), name, custom_id, caller)
            if result.response is None or result.response.status_code != BUSY:
                return result
            if self._end_of(batch) is not None:
                return None
            await asyncio.sleep(RETRY_S)

    def _drop_empty(self, batch: BatchFacts) -> None:
        """Forget a file of results without any. Mutates: batch"""
        for name in ("output_file_id", "error_file_id"):
            file_id = getattr(batch, name)
            if self._storage.content(file_id).stat().st_size == 0:
                setattr(batch, name, None)
                self._storage.keep_batch(batch)
                self._storage.drop_file(file_id)


def _last_in_line(line: Line) -> Line:
    """Return the line with the lowest priority, unless it sets a priority itself."""
    try:
        request = msgspec.json.decode(line.raw)
        request["body"].setdefault("priority", PRIORITY)
    except (msgspec.MsgspecError, TypeError, KeyError, AttributeError):
        return line  # whoever reads it says what is wrong
    return Line(number=line.number, raw=msgspec.json.encode(request), is_whole=line.is_whole)


def _answered(path: Path) -> set[str]:
    """Return the names of the lines that have a result; a last line that was torn is cut off.

    Mutates: the file
    """
    if not path.exists():
        return set()
    raw = path.read_bytes()
    whole = raw[: raw.rfind(b"\n") + 1]
    if len(whole) < len(raw):
        path.write_bytes(whole)
    return {msgspec.json.decode(line)["id"] for line in whole.splitlines() if line}


def _locked(file: IO[bytes]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True

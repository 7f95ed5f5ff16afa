"""BatchRunner: answers batches next to live traffic, and resumes after a restart.

The batches of one key run one after another, batches of different keys run concurrently. Lines wait
while client requests wait, and use at most a share of the rows. Results are written as they arrive.
If a crash tore a result line, its request is answered again.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING

import msgspec

from dovetail.json_values import InvalidJson, json_struct
from dovetail.observability.supervise import supervised
from dovetail.server.endpoint import named_owner, owner_of_key
from dovetail_plugins.apis.batches.answer import ResultLine, answer
from dovetail_plugins.apis.batches.call import Caller
from dovetail_plugins.apis.batches.disk import ResultFile, is_passing, mended_lines
from dovetail_plugins.apis.batches.lines import (
    BadLine,
    Line,
    custom_id_of,
    name_of_line,
    parse,
    read_lines,
)
from dovetail_plugins.apis.batches.storage import BatchFacts, FileFacts, FileStorage, LineFault

if TYPE_CHECKING:
    from fastapi import FastAPI

    from dovetail.server.endpoint import App

logger = logging.getLogger("dovetail_plugins.batch")
POLL_S = 0.02
"""How often waiting lines check whether clients still wait."""
LOOK_S = 1.0
"""How often the runner looks for batches from other processes."""
RETRY_S = 0.5
MOST_LANES = 16
"""How many keys have batches running at the same time. Other keys wait until one of them has
finished."""
PROGRESS_S = 1.0
SHARE = 2
"""All batches together use at most 1 / SHARE of the rows."""
MAX_FAULTS = 100
BUSY = 503
KEY_GONE = LineFault(
    code="api_key_removed",
    message="the API key that made this batch is not one of the server's any more. Start the "
    "server with it, or make the batch again with another key.",
)
PRIORITY = 1 << 20
"""The default priority of a line's request: after all others, if the scheduler uses priorities."""


class _Named(msgspec.Struct, frozen=True):
    """The part of a result that identifies its line."""

    id: str


@dataclass(slots=True)
class _Work:
    """A running batch. `good` and `bad` are the names of the lines that have a result."""

    batch: BatchFacts
    path: Path
    caller: Caller
    good: set[str]
    bad: set[str]
    kept_s: float = 0.0
    output: ResultFile = field(init=False)
    errors: ResultFile = field(init=False)

    def has(self, name: str) -> bool:
        """Return whether a line has a result."""
        return name in self.good or name in self.bad

    def add(self, result: ResultLine) -> None:
        """Write a result. Raises: OSError. Mutates: self"""
        file, names = (self.errors, self.bad) if result.is_failed else (self.output, self.good)
        file.add(msgspec.json.encode(result))
        names.add(result.id)

    def count(self) -> None:
        """Update the batch's counts. Mutates: self.batch"""
        self.batch.completed, self.batch.failed = len(self.good), len(self.bad)


class BatchRunner:
    """Runs the batches of a folder until `run` ends. `has_news` is set when this process has
    created a batch, or a key has none left."""

    def __init__(self, storage: FileStorage, max_line_bytes: int, keys: Sequence[str]) -> None:
        self.app: FastAPI | None = None
        self._storage = storage
        self._max_line_bytes = max_line_bytes
        self._keys = {owner_of_key(key): key for key in keys}
        self._closed: set[str] = set()
        self.has_news = asyncio.Event()
        self._gate: asyncio.Semaphore | None = None

    async def run(self) -> None:
        """Find and answer batches until cancelled. Raises: OSError"""
        with (self._storage.folder / ".lock").open("ab") as lock:
            while not _locked(lock):
                await asyncio.sleep(LOOK_S)  # another process of this server runs them
            await asyncio.to_thread(self._storage.tidy)
            lanes: dict[str, asyncio.Task[None]] = {}
            try:
                while True:
                    self.has_news.clear()
                    await self._begin_lanes(lanes)
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(LOOK_S):
                            await self.has_news.wait()
            finally:
                for lane in lanes.values():
                    lane.cancel()
                await asyncio.gather(*lanes.values(), return_exceptions=True)

    async def _begin_lanes(self, lanes: dict[str, asyncio.Task[None]]) -> None:
        """Start a lane (a task) for each key with an open batch. Mutates: lanes"""
        for owner in [owner for owner, lane in lanes.items() if lane.done()]:
            lanes.pop(owner).result()
        for batch in await self._open_batches():
            if batch.owner not in lanes and len(lanes) < MOST_LANES:
                lanes[batch.owner] = supervised("batches", partial(self._run_lane, batch.owner))

    async def _open_batches(self) -> list[BatchFacts]:
        if self.app is None:
            return []
        return await asyncio.to_thread(self._storage.open_batches, self._closed)

    async def _run_lane(self, owner: str) -> None:
        """Run a key's batches, oldest first, until none is open. Raises: OSError, ExceptionGroup"""
        while mine := [batch for batch in await self._open_batches() if batch.owner == owner]:
            await self._run_one(mine[0])
        self.has_news.set()

    async def _run_one(self, batch: BatchFacts) -> None:
        """Run a batch to its end. Temporary errors such as a full disk are raised, and the batch
        continues later. Raises: OSError, ExceptionGroup"""
        try:
            await self._one(batch)
        except Exception as error:
            if is_passing(error):
                raise
            logger.exception("batch %s failed", batch.id)
            batch.faults = [LineFault(code="server_error", message="see the log of the server.")]
            await self._end(batch, "failed")

    async def _end(self, batch: BatchFacts, status: str) -> None:
        await asyncio.to_thread(self._storage.end_batch, batch, status)

    async def _one(self, batch: BatchFacts) -> None:
        caller = self._caller_for(batch)
        if caller is None:
            logger.warning("batch %s: %s", batch.id, KEY_GONE.message)
            batch.faults = [KEY_GONE]
            await self._end(batch, "failed")
            return
        path = self._storage.content(batch.input_file_id)
        if batch.status == "validating":
            batch.faults, batch.total = await asyncio.to_thread(self._checked, batch, path, caller)
            if batch.faults:
                await self._end(batch, "failed")
                return
            await asyncio.to_thread(self._begin, batch)
        await self._answer_lines(batch, path, caller)

    def _begin(self, batch: BatchFacts) -> None:
        """Create the result files. Mutates: batch"""
        batch.output_file_id = self._storage.result_file(batch, "output").id
        batch.error_file_id = self._storage.result_file(batch, "error").id
        batch.goes("in_progress")
        self._storage.keep_batch(batch)

    def _caller_for(self, batch: BatchFacts) -> Caller | None:
        """Return a caller with the key of a batch's owner; None if the server no longer has this
        key, so that the batch must not run."""
        assert self.app is not None
        is_named = named_owner(batch.owner) is not None
        if self._keys and batch.owner not in self._keys and not is_named:
            return None
        if is_named and not self.app.state.gate.knows(batch.owner):
            return None
        return Caller(self.app, key=self._keys.get(batch.owner, ""), owner=batch.owner)

    def _checked(
        self, batch: BatchFacts, path: Path, caller: Caller
    ) -> tuple[list[LineFault], int]:
        """Return the faults of an input, and its number of lines."""
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
        """Answer the lines without a result. Mutates: batch"""
        files = [
            await asyncio.to_thread(self._storage.result_file, batch, kind)
            for kind in ("output", "error")
        ]
        good, bad = [
            {one.id for one in await asyncio.to_thread(self._results, facts)} for facts in files
        ]
        work = _Work(batch, path, caller, good, bad - good)
        with (
            ResultFile(self._storage.content(files[0].id)) as work.output,
            ResultFile(self._storage.content(files[1].id)) as work.errors,
        ):
            try:
                await self._run_lines(work)
            finally:
                work.count()
            for file in (work.output, work.errors):
                await asyncio.to_thread(file.sync)
        await asyncio.to_thread(self._finish, batch, files, self._end_of(batch) or "completed")

    def _results(self, facts: FileFacts) -> list[_Named]:
        return list(mended_lines(self._storage.content(facts.id), _Named))

    def _finish(self, batch: BatchFacts, files: Sequence[FileFacts], status: str) -> None:
        """Finish a batch whose results are on disk, and remove empty result files. Mutates:
        batch"""
        for name, facts in zip(("output_file_id", "error_file_id"), files, strict=True):
            is_empty = not self._storage.content(facts.id).stat().st_size
            if is_empty:
                self._storage.drop_file(facts.id)
            else:
                self._storage.keep_file(facts)
            setattr(batch, name, None if is_empty else facts.id)
        self._storage.end_batch(batch, status)

    async def _run_lines(self, work: _Work) -> None:
        """Answer lines concurrently until all are answered or the batch ends."""
        gate = self._gate = self._gate or asyncio.Semaphore(
            max(1, self._server.engine.spec.total_rows // SHARE)
        )

        async def one(line: Line, name: str, custom_id: str | None) -> None:
            result = await self._result(work.batch, line, name, custom_id, work.caller)
            if result is not None:
                work.add(result)
                await self._keep_counts(work)

        async with asyncio.TaskGroup() as group:
            for line in read_lines(work.path, self._max_line_bytes):
                custom_id = custom_id_of(line)
                name = name_of_line(line, custom_id)
                if work.has(name):
                    continue
                with contextlib.ExitStack() as place:
                    await gate.acquire()
                    place.callback(gate.release)
                    await self._wait_for_room()
                    if self._end_of(work.batch) is not None:
                        break
                    place.pop_all()  # released when the line is answered
                    task = group.create_task(one(line, name, custom_id))
                    task.add_done_callback(lambda _: gate.release())

    async def _keep_counts(self, work: _Work) -> None:
        """Record the progress of a batch, and write it from time to time."""
        self._storage.live[work.batch.id] = (len(work.good), len(work.bad))
        if time.monotonic() - work.kept_s > PROGRESS_S:
            work.kept_s = time.monotonic()
            await asyncio.to_thread(self._storage.keep_counts, work.batch)

    @property
    def _server(self) -> App:
        assert self.app is not None
        server: App = self.app.state.server
        return server

    def _end_of(self, batch: BatchFacts) -> str | None:
        """Return the status if a batch must end before its lines do, else None."""
        if self._storage.is_cancelled(batch):
            return "cancelled"
        return "expired" if time.time() > batch.expires_at else None

    async def _wait_for_room(self) -> None:
        """Wait while client requests wait: they have priority."""
        server = self._server
        while server.engine.load()[1] > 0:
            await asyncio.sleep(POLL_S)

    async def _result(
        self, batch: BatchFacts, line: Line, name: str, custom_id: str | None, caller: Caller
    ) -> ResultLine | None:
        """Return a line's result; None if the batch ends first. A line is sent again if the server
        is full or shutting down."""
        while True:
            result = await answer(_last_in_line(line), name, custom_id, caller)
            if result.response is None or result.response.status_code != BUSY:
                return result
            if self._end_of(batch) is not None:
                return None
            await asyncio.sleep(RETRY_S)


def _last_in_line(line: Line) -> Line:
    """Return the line with the lowest priority, unless it sets one itself."""
    try:
        request = json_struct(line.raw)
        request["body"].setdefault("priority", PRIORITY)
    except (InvalidJson, TypeError, KeyError, AttributeError):
        return line  # the route reports what is wrong
    return Line(number=line.number, raw=msgspec.json.encode(request), is_whole=line.is_whole)


def _locked(file: IO[bytes]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True

"""TextProcess: reads large bodies and long prompts in separate processes.

Parsing JSON and tokenizing hold the interpreter lock, in any thread. With separate processes, this
one's event loop continues while megabytes of text are read.
"""

from __future__ import annotations

import asyncio
import ctypes
import heapq
import itertools
import logging
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from dovetail.engine.client.text.text_worker import (
    Describe,
    EncodeText,
    GoOn,
    Parse,
    Report,
    TextBoot,
    TextJob,
    TextResult,
)
from dovetail.errors import Overloaded, RequestError
from dovetail.interfaces.data.spec import EngineSpec
from dovetail.observability.supervise import supervised
from dovetail.processes.child_channel import ChildChannel

logger = logging.getLogger(__name__)

WORKER = "dovetail.engine.client.text.text_worker"
LARGE_BODY_BYTES = 1 << 17
HUGE_BYTES = 1 << 20
IDLE_S = 300.0
"""As long as an agent's tools may take between two of its long prompts."""
SILENCE_LIMIT_S = 600.0
"""The maximum time that a process may work on a part of a text."""

REST_FACTOR = 4.0
"""Rest time per second of work while anything is being generated: streams are disturbed for at most
a fifth of the time."""
LOOK_S = 0.1
"""The interval at which a rest checks whether it is still needed."""

MAX_WAITING_BYTES = 512 << 20
"""The maximum size of waiting texts in bytes; beyond it requests are refused immediately."""


Answer = tuple[TextResult, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """A text's tokens as JSON: the ids, and their texts if requested."""

    num_tokens: int
    ids: bytes
    texts: bytes | None


class TextProcess:
    """One per API process, used within one event loop: two processes, one of them for huge texts,
    so that other texts need not wait for those. Must be closed.

    `is_busy` returns whether anything is being generated; huge texts are then read slowly.
    """

    def __init__(self, spec: EngineSpec, is_busy: Callable[[], bool]) -> None:
        self._lanes = (
            _Lane(TextBoot(spec=spec, is_patient=False), lambda: False),
            _Lane(TextBoot(spec=spec, is_patient=True), is_busy),
        )

    @property
    def pids(self) -> list[int]:
        """Return the ids of the running processes."""
        return [lane.pid for lane in self._lanes if lane.pid is not None]

    async def parse(self, body: bytes, *, is_bounded: bool) -> Any:
        """Return a JSON body's value. Raises: RequestError, Overloaded"""
        job = Parse(num_bytes=len(body), is_bounded=is_bounded)
        _, payload = await self._lane(body).run(job, body)
        return msgspec.msgpack.decode(payload)

    async def encode(
        self,
        text: str,
        *,
        add_special_tokens: bool,
        max_tokens: int | None,
        keep: int | None,
        keeps_start: bool = False,
        plain: Sequence[tuple[int, int]] = (),
        folder: str = "",
    ) -> Sequence[int]:
        """Return a text's tokens: `long_text.encoded`. `folder` has a tokenizer other than the
        model's. Raises: RequestError, Overloaded"""
        data = text.encode()
        job = EncodeText(
            num_bytes=len(data),
            add_special_tokens=add_special_tokens,
            most=max_tokens,
            keep=keep,
            keeps_start=keeps_start,
            plain=tuple(plain),
            folder=folder,
        )
        _, payload = await self._lane(data).run(job, data)
        ids = array("I")
        ids.frombytes(payload)
        return ids

    async def describe(
        self,
        text: str,
        *,
        add_special_tokens: bool,
        shows_texts: bool,
        plain: Sequence[tuple[int, int]] = (),
        folder: str = "",
    ) -> Described:
        """Return all tokens of a text as JSON, with the tokenizer of a folder ("": the model's).
        Raises: RequestError, Overloaded"""
        data = text.encode()
        job = Describe(
            num_bytes=len(data),
            add_special_tokens=add_special_tokens,
            shows_texts=shows_texts,
            plain=tuple(plain),
            folder=folder,
        )
        result, payload = await self._lane(data).run(job, data)
        return Described(
            num_tokens=result.num_tokens,
            ids=payload[: result.num_id_bytes],
            texts=payload[result.num_id_bytes :] if shows_texts else None,
        )

    async def close(self) -> None:
        """Stop the processes, even if busy."""
        for lane in self._lanes:
            await lane.close()

    def _lane(self, data: bytes) -> _Lane:
        return self._lanes[len(data) > HUGE_BYTES]


class _Lane:
    """One process and its queue, shortest text first. Started by a job, stopped when idle."""

    def __init__(self, boot: TextBoot, is_busy: Callable[[], bool]) -> None:
        self._boot = boot
        self._is_busy = is_busy
        self._waiting: list[tuple[int, int, TextJob, bytes, asyncio.Future[Answer]]] = []
        self._num_bytes = 0
        self._serials = itertools.count()
        self._has_work = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._worker: ChildChannel | None = None

    @property
    def pid(self) -> int | None:
        """Return the process's id, None if it is not running."""
        return None if self._worker is None else self._worker.pid

    async def run(self, job: TextJob, data: bytes) -> Answer:
        """Queue a job and return its result. Raises: RequestError, Overloaded"""
        if self._num_bytes + len(data) > MAX_WAITING_BYTES:
            raise Overloaded("too many long texts wait to be read.")
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (len(data), next(self._serials), job, data, future))
        self._num_bytes += len(data)
        self._has_work.set()
        if self._task is None or self._task.done():
            self._task = supervised("texts", self._serve)
        result, payload = await future
        if result.fault is not None:
            fault = result.fault
            raise RequestError(fault.what, where=fault.where, fix=fault.fix, code=fault.code)
        return result, payload

    async def close(self) -> None:
        """Stop the process, even if busy."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for *_, future in self._waiting:
            _give_up(future)
        await self._end_worker()

    async def _serve(self) -> None:
        """Run queued jobs until the queue has been empty for a while."""
        while True:
            try:
                async with asyncio.timeout(IDLE_S):
                    await self._has_work.wait()
            except TimeoutError:
                if self._has_work.is_set():  # a job came at the last moment
                    continue
                self._task = None
                await self._end_worker()
                return
            size, _, job, data, future = heapq.heappop(self._waiting)
            self._num_bytes -= size
            if not self._waiting:
                self._has_work.clear()
            try:
                if not future.done():
                    await self._do(job, data, future)
            finally:
                _give_up(future)
            del data, future

    async def _do(self, job: TextJob, data: bytes, future: asyncio.Future[Answer]) -> None:
        """Run a job in the process and deliver its result. Mutates: future"""
        try:
            if self._worker is None:
                self._worker = await ChildChannel.open(WORKER, self._boot)
            work = asyncio.ensure_future(self._read(self._worker, job, data, future))
            if self._boot.is_patient:  # do not read a huge text for a cancelled caller
                future.add_done_callback(lambda done: done.cancelled() and work.cancel())
            await work
        except asyncio.CancelledError:
            await self._end_worker()
            if not future.cancelled():
                raise
            return
        except (TimeoutError, OSError, asyncio.IncompleteReadError) as error:
            logger.warning("the process that reads long texts ended: %r", error)
            await self._end_worker()
            if not future.done():
                what = "the process that reads long texts ended or does not respond."
                future.set_exception(RequestError(what, status=500))

    async def _read(
        self, worker: ChildChannel, job: TextJob, data: bytes, future: asyncio.Future[Answer]
    ) -> None:
        """Run a job in the process, deliver its result, and rest. Mutates: future
        Raises: IncompleteReadError, TimeoutError, OSError if the process ends"""
        await worker.send(job, data)
        while (report := await self._report(worker)).result is None:
            await self._rest(report.worked_s)
            await worker.send(GoOn())
        payload = await worker.receive_bytes(report.result.num_bytes)
        if not future.done():
            future.set_result((report.result, payload))
        await self._rest(report.worked_s)

    async def _report(self, worker: ChildChannel) -> Report:
        async with asyncio.timeout(SILENCE_LIMIT_S):
            return await worker.receive(Report)

    async def _rest(self, worked_s: float) -> None:
        """Pause in proportion to the work done, as long as others need the processor."""
        left_s = REST_FACTOR * worked_s
        while left_s > 0 and self._is_busy():
            await asyncio.sleep(min(left_s, LOOK_S))
            left_s -= LOOK_S

    async def _end_worker(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            await worker.close()
            _trim()


def _give_up(future: asyncio.Future[Answer]) -> None:
    """Fail a job that is still pending, since the server is shutting down. Mutates: future"""
    if not future.done():
        future.set_exception(Overloaded("the server is shutting down."))


def _trim() -> None:
    """Return freed memory to the system; glibc keeps it unless `malloc_trim` is called."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)

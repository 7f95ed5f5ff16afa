"""Requests of every kind that are cut off at random moments, and what a server has in hand, before
and after.

A request is cut in one of two ways: its client leaves, or the task that answers it is cancelled, as
a server's shutdown does. Requests call the application without sockets, so that thousands take
minutes; `benchmarks/cuts.py` cuts them at a server's sockets.
"""

from __future__ import annotations

import asyncio
import gc
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import psutil
from fastapi import FastAPI

from support.cut_kinds import KINDS
from support.inside import num_in_line, num_open, turn_of
from support.serving import post_scope

AT_ONCE = 24
SETTLE_S = 60.0
LATEST_S = 0.25
"""Requests are cut before this time; most have an answer by then."""


@dataclass(slots=True, kw_only=True)
class Holdings:
    """What a server has in hand when nobody asks anything of it."""

    inside: int
    waiting_constraints: int
    has_turn: bool
    load: tuple[int, int]
    outputs: int
    open_requests: int
    tasks: int
    descriptors: int
    children: int
    memory_bytes: int

    def beyond(self, before: Holdings) -> dict[str, tuple[Any, Any]]:
        """Return what there is more of than before, but for descriptors and memory, which threads
        and caches take: a process that has been idle may have ended since."""
        left_out = ("descriptors", "memory_bytes")
        pairs = {name: (getattr(before, name), getattr(self, name)) for name in self.__slots__}
        return {name: p for name, p in pairs.items() if name not in left_out and p[1] > p[0]}


def holdings(app: FastAPI) -> Holdings:
    """Return what an application has in hand now."""
    server = app.state.server
    engine = server.engine
    compiler = engine.constraint_compiler
    own = psutil.Process()
    return Holdings(
        inside=server.admission.num_inside,
        waiting_constraints=num_in_line(compiler),
        has_turn=turn_of(compiler).locked(),
        load=engine.load(),
        outputs=num_open(engine),
        open_requests=app.state.open_requests.count,
        tasks=len(asyncio.all_tasks()),
        descriptors=own.num_fds(),
        children=len(own.children()),
        memory_bytes=own.memory_info().rss,
    )


async def settled(app: FastAPI, before: Holdings | None = None) -> Holdings:
    """Return what is in hand once nobody is inside, and it is no more than before."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + SETTLE_S
    while True:
        await asyncio.sleep(0.2)
        gc.collect()
        now = holdings(app)
        is_idle = now.load == (0, 0) and not now.has_turn and not now.inside
        is_same = before is None or not now.beyond(before)
        if (is_idle and is_same) or loop.time() > until_s:
            return now


@dataclass(slots=True)
class Verdicts:
    """How requests ended: with how many answers of each status, and in which errors."""

    statuses: dict[int, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def note(self, kind: str, status: int, body: bytes) -> None:
        """Count an answer; one of 500 and more is a fault, a full queue is not. Mutates: self"""
        self.statuses[status] = self.statuses.get(status, 0) + 1
        if status >= 500 and status != 503:
            self.faults.append(f"{kind}: {status} {body[:200]!r}")


async def cut_all(app: FastAPI, seed: int, num_each: int, kinds: Sequence[str] = ()) -> Verdicts:
    """Send `num_each` requests of each kind and cut each at a moment that the seed decides."""
    draw = random.Random(seed)
    work = [(kind, number) for kind in kinds or KINDS for number in range(num_each)]
    draw.shuffle(work)
    verdicts = Verdicts()
    turns = asyncio.Semaphore(AT_ONCE)
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: verdicts.faults.append(repr(context)))
    async with asyncio.TaskGroup() as group:
        for kind, number in work:
            await turns.acquire()
            moment_s = draw.random() ** 2 * LATEST_S
            one = _cut(app, kind, seed * 100_000 + number, moment_s, number % 4, verdicts)
            group.create_task(one).add_done_callback(lambda _: turns.release())
    loop.set_exception_handler(None)
    return verdicts


async def _cut(
    app: FastAPI, kind: str, number: int, moment_s: float, way: int, verdicts: Verdicts
) -> None:
    """Send one request and cut it: the client leaves (way 0 and 1), the task is cancelled (2), or
    is cancelled twice (3)."""
    path, body_of = KINDS[kind]
    left = asyncio.Event()
    got: dict[str, Any] = {"status": 0, "body": b""}
    app_call = _call(app, path, json.dumps(body_of(number)).encode(), left, got)
    task = asyncio.ensure_future(app_call)
    await asyncio.wait({task}, timeout=moment_s)
    left.set()
    if way >= 2:
        task.cancel()
    if way == 3:
        await asyncio.sleep(0)
        task.cancel()
    await asyncio.wait({task})
    if not task.cancelled() and (error := task.exception()) is not None:
        verdicts.faults.append(f"{kind}: {error!r}")
    verdicts.note(kind, got["status"], got["body"])


async def _call(
    app: FastAPI, path: str, body: bytes, left: asyncio.Event, got: dict[str, Any]
) -> None:
    incoming = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Any:
        if incoming:
            return incoming.pop()
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            got["status"] = message["status"]
        got["body"] += message.get("body", b"")
        await asyncio.sleep(0)

    await app(post_scope(path), receive, send)

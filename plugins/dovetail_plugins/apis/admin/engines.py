"""GET /engines, POST /engines/drain, /engines/remove and /engines/add: engines leave and come back.

An engine that leaves gets no new requests from any API process. Then it is ended, and its place can
be filled again. The number of places is that of the engines at the start.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import Field
from starlette.responses import Response

from dovetail.engine.messages import Leave
from dovetail.errors import DovetailError, RequestError
from dovetail.observability.metrics import counter
from dovetail.processes.uninterrupted import uninterrupted
from dovetail.server.endpoint import App, Body, Reply, ServerOf, json_reply
from dovetail_plugins.apis._engines import engine_report

REMOVED = "it was removed on request."
NOTICE_S = 0.25
"""In this time all API processes hear that an engine leaves."""
NEWS_S = 3.0
"""In this time an API process learns what another one has done to the engines."""
CONNECT_S = 20.0
"""In this time it has connected to an engine that was started."""
LOOK_S = 0.05
START_LIMIT_S = 900.0
REMOVALS = counter("dovetail:engine_removals", "How often an engine was removed on request")
ADDITIONS = counter("dovetail:engine_additions", "How often an engine was added on request")


class EngineChoice(Body):
    """The number of an engine, as /engines shows it."""

    engine: Annotated[int, Field(ge=0)]


class DrainRequest(EngineChoice):
    """An engine, and how many seconds its requests have to finish."""

    timeout: Annotated[float, Field(ge=0, le=86400)] = 60.0


class Engines(Reply):
    """The state of every engine."""

    engines: list[dict[str, Any]]


async def show_engines(server: ServerOf) -> Response:
    """Return the state of every engine."""
    return _answer(server, [])


async def drain(server: ServerOf, body: DrainRequest) -> Response:
    """Give an engine no new requests, and end it once it has none, or after a time. Requests that
    it still has then run again in others; only streams that have begun end with an error."""
    ignored = list(server.fields.check(body, is_answered=False))
    await uninterrupted(_remove(server, body.engine, body.timeout))
    return _answer(server, ignored)


async def remove(server: ServerOf, body: EngineChoice) -> Response:
    """Do what /engines/drain does, without waiting for requests."""
    ignored = list(server.fields.check(body, is_answered=False))
    await uninterrupted(_remove(server, body.engine, 0.0))
    return _answer(server, ignored)


async def add(server: ServerOf, body: EngineChoice) -> Response:
    """Replace an engine that was removed or given up by a new one, with the weights, adapters,
    sleep and pause of the others."""
    ignored = list(server.fields.check(body, is_answered=False))
    await uninterrupted(_add(server, body.engine))
    return _answer(server, ignored)


def _answer(server: App, ignored: list[str]) -> Response:
    return json_reply(Engines(engines=list(map(engine_report, server.engine.states()))), ignored)


async def _remove(server: App, number: int, timeout_s: float) -> None:
    """End an engine. Raises: RequestError if it cannot be ended"""
    deadline_s = time.monotonic() + timeout_s
    place = _place(server, number)
    if not await _soon(server, lambda: server.engine.states()[place].reason is None):
        raise _refused(f"engine {number} has ended: {server.engine.states()[place].reason}")
    if not await _soon(server, lambda: _has_others(server, number)):
        raise _last(number)
    emptied = asyncio.ensure_future(server.engine.call_each(Leave(engine=number)))
    await asyncio.wait({emptied}, timeout=NOTICE_S)
    if emptied.done():
        await emptied
    if not _has_others(server, number):  # two were asked to leave at once
        await server.engine.call_each(Leave(engine=number, leaves=False))
        await emptied
        raise _last(number)
    await asyncio.wait({emptied}, timeout=max(0.0, deadline_s - time.monotonic()))
    server.engine.give_up({number: (server.engine.lives[place].pid, REMOVED)})
    await asyncio.gather(emptied, return_exceptions=True)  # without the engine, if it had requests
    REMOVALS.inc()


async def _soon(server: App, claim: Callable[[], bool]) -> bool:
    """Return whether this API process learns in time that something is so."""
    begun_s = time.monotonic()
    while not claim():
        is_starting = any(state.is_restarting for state in server.engine.states())
        if time.monotonic() - begun_s > (CONNECT_S if is_starting else NEWS_S):
            return False
        await asyncio.sleep(LOOK_S)
    return True


async def _add(server: App, number: int) -> None:
    """Start an engine again. Raises: RequestError if it is alive, DovetailError if it does not
    start"""
    engine = server.engine
    place = _place(server, number)
    if not engine.states()[place].is_leaving and engine.states()[place].reason is None:
        raise _refused(f"engine {number} is alive.")
    if not await _soon(server, lambda: engine.states()[place].reason is not None):
        raise _refused(f"engine {number} is about to end, and can be added then.")
    if number in engine.spec.elsewhere:
        what = f"engine {number} is of another machine, where `dovetail serve --join` starts it."
        raise _refused(what)
    before = engine.lives[place]
    engine.add(place)
    deadline_s = time.monotonic() + START_LIMIT_S
    while (state := engine.states()[place]).reason is not None:
        life = engine.lives[place]
        is_over = life.is_over and life.reason not in (before.reason, REMOVED)
        if is_over or time.monotonic() > deadline_s:
            raise DovetailError(f"engine {number} did not start: {state.reason}")
        await asyncio.sleep(LOOK_S)
    ADDITIONS.inc()


def _place(server: App, number: int) -> int:
    """Return the place of an engine that may come and go. Raises: RequestError"""
    spec = server.engine.spec
    places = {state.engine: place for place, state in enumerate(server.engine.states())}
    if number not in places:
        known = ", ".join(map(str, places))
        raise RequestError(f"there is no engine {number}.", where="engine", fix=f"use {known}.")
    if spec.shares_experts:
        raise _refused("the engines share experts, so all are needed.")
    return places[number]


def _has_others(server: App, number: int) -> bool:
    """Return whether there is another engine for new requests."""
    others = (state for state in server.engine.states() if state.engine != number)
    return any(state.reason is None and not state.is_leaving for state in others)


def _last(number: int) -> RequestError:
    return _refused(f"engine {number} is the last one that takes requests.")


def _refused(what: str) -> RequestError:
    return RequestError(what, where="engine", status=409)

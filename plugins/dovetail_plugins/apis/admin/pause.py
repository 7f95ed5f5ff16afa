"""POST /pause and /resume, GET /is_paused: stop the steps of all engines, and go on.

New requests wait meanwhile, so that weights can be replaced without refusing any. The names are
vLLM's; `/pause_generation` and `/continue_generation` are the same with SGLang's.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Literal

from fastapi import Query
from starlette.responses import Response

from dovetail.engine.messages import Pause, Ping, Resume
from dovetail.errors import RequestError
from dovetail.server.endpoint import Body, Reply, ServerOf, json_reply

_MODES: dict[str, Pause] = {
    "abort": Pause(mode="abort", drops=True),
    "retract": Pause(mode="keep", drops=True),
    "in_place": Pause(mode="keep"),
}
"""SGLang's modes."""


class PauseGenerationRequest(Body):
    """SGLang's fields: running requests end, are computed again later, or keep their KV cache."""

    mode: Literal["abort", "retract", "in_place"] = "abort"


class ContinueGenerationRequest(Body):
    """SGLang's empty body."""


class Status(Reply):
    """vLLM's answer."""

    status: str


class Done(Reply):
    """SGLang's answer."""

    status: str = "ok"
    message: str


async def pause(
    server: ServerOf,
    mode: Literal["abort", "wait", "keep"] = "abort",
    *,
    clear_cache: bool = True,
    wait_for_inflight_requests: bool = False,
    timeout: Annotated[float | None, Query(ge=0, le=86400)] = None,
) -> Response:
    """Stop all steps. Running requests end, or finish first, or go on after /resume: with their KV
    cache, or with clear_cache they are computed again. New requests wait for /resume. With
    mode=wait those that run after `timeout` seconds end too."""
    chosen = "wait" if wait_for_inflight_requests else mode
    if timeout is not None and chosen != "wait":
        fix = "leave it out, or use mode=wait."
        raise RequestError(f"mode {chosen} waits for nothing.", where="timeout", fix=fix)
    pausing = asyncio.ensure_future(server.engine.call_each(Pause(mode=chosen, drops=clear_cache)))
    await asyncio.wait({pausing}, timeout=timeout)
    if not pausing.done():
        await server.engine.call_each(Pause(mode="abort", drops=clear_cache))
    await pausing
    return json_reply(Status(status="paused"), [])


async def resume(server: ServerOf) -> Response:
    """Start steps again."""
    await server.engine.call_each(Resume())
    return json_reply(Status(status="resumed"), [])


async def is_paused(server: ServerOf) -> dict[str, bool]:
    """Return whether any engine is paused."""
    found = await server.engine.call_each(Ping())
    return {"is_paused": any(status.condition.is_paused for status in found)}


async def pause_generation(server: ServerOf, body: PauseGenerationRequest) -> Response:
    """Do what /pause does, with SGLang's names."""
    ignored = list(server.fields.check(body, is_answered=False))
    await server.engine.call_each(_MODES[body.mode])
    return json_reply(Done(message="No step runs until /continue_generation."), ignored)


async def continue_generation(server: ServerOf, body: ContinueGenerationRequest) -> Response:
    """Do what /resume does."""
    ignored = list(server.fields.check(body, is_answered=False))
    await server.engine.call_each(Resume())
    return json_reply(Done(message="Steps run again."), ignored)

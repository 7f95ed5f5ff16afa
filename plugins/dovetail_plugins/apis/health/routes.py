"""Health checks (alive, ready, making progress), load, metrics and version.

No route here waits for the engine: the answers come from what this process already knows.
"""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from dovetail.engine.client.connection import STALL_S
from dovetail.interfaces.api import Api, Route
from dovetail.interfaces.plugin import Info
from dovetail.observability import metrics
from dovetail.observability.supervise import failing
from dovetail.server.endpoint import App, ServerOf, problem
from dovetail.version import __version__
from dovetail_plugins.apis._engines import engine_report

WHOLE = ("up", "asleep", "leaving", "removed")
"""States of engines that are as they are meant to be."""


async def live() -> Response:
    """Return 200 if this process responds."""
    return Response(status_code=200)


async def ready(server: ServerOf) -> Response:
    """Return 200 if new work is accepted, else 503."""
    reason = _dead_reason(server) or _restart_reason(server)
    if reason is None and server.admission.is_draining:
        reason = "the server is shutting down."
    if reason is None and server.engine.asleep:
        reason = "the engine is asleep."
    return _answer(reason or _silence_reason(server))


async def health(server: ServerOf) -> Response:
    """Return whether the engine is alive and makes progress on queued work. With several engines
    each is reported, and one alone if it was started again; the server is healthy while one of them
    works. Tasks that failed in the last minute and were restarted are listed. A healthy server's
    body has llama.cpp's shape."""
    reason = _dead_reason(server) or _restart_reason(server) or _stall_reason(server)
    states = server.engine.states()
    failed = sorted({*failing(), *(name for state in states for name in state.failing)})
    if reason is not None:
        return _answer(reason)
    if len(states) == 1 and not failed and not states[0].restarts:
        return JSONResponse({"status": "ok"})
    engines = [engine_report(state) for state in states]
    is_whole = not failed and all(one["state"] in WHOLE for one in engines)
    report: dict[str, Any] = {"status": "ok" if is_whole else "degraded", "engines": engines}
    return JSONResponse(report | ({"failing_tasks": failed} if failed else {}))


async def ping(server: ServerOf) -> Response:
    """Return the same as /health, under the name that hosting services use."""
    return await health(server)


async def version() -> dict[str, str]:
    """Return dovetail's version."""
    return {"version": __version__}


async def load(request: Request, server: ServerOf) -> dict[str, Any]:
    """Return the current load: sequences in the engine, and in this process."""
    running, waiting = server.engine.load()
    counts = {"running": running, "waiting": waiting, "inside": server.admission.num_inside}
    if server.frontend.enable_server_load_tracking:
        counts["server_load"] = request.app.state.open_requests.count
    return counts


async def show_metrics() -> Response:
    """Return all metrics as Prometheus text."""
    return Response(metrics.exposition(), headers={"content-type": metrics.CONTENT_TYPE})


def _dead_reason(server: App) -> str | None:
    if server.engine.is_alive:
        return None
    return f"the engine is gone: {server.engine.death_reason or 'unknown cause'}"


def _restart_reason(server: App) -> str | None:
    """Return that no engine is alive, if one is being started again."""
    states = server.engine.states()
    if any(state.reason is None for state in states):
        return None
    return f"the engine is being started again, because it had died: {states[0].reason}"


def _stall_reason(server: App) -> str | None:
    age_s = server.engine.heartbeat_age_s()
    has_work = server.admission.num_inside > 0 or sum(server.engine.load()) > 0
    if has_work and age_s > STALL_S:
        return f"the engine has work but has given no sign of life for {age_s:.0f} s."
    return None


def _silence_reason(server: App) -> str | None:
    """Return why new work would wait: even an idle engine sends a sign of life every second."""
    age_s = server.engine.heartbeat_age_s()
    if age_s > STALL_S:
        return f"the engine stands still: it has given no sign of life for {age_s:.0f} s."
    return None


def _answer(reason: str | None) -> Response:
    if reason is None:
        return Response(status_code=200)
    return problem(503, reason, kind="unavailable").response()


class HealthApi(Api):
    """Health, load, metrics and version."""

    info = Info(summary="health, load, metrics and version")
    routes = (
        Route(method="GET", path="/health", endpoint=health, is_open=True),
        Route(method="GET", path="/v1/health", endpoint=health, is_open=True),
        Route(method="GET", path="/live", endpoint=live, is_open=True),
        Route(method="GET", path="/ready", endpoint=ready, is_open=True),
        Route(method="GET", path="/ping", endpoint=ping, is_open=True),
        Route(method="POST", path="/ping", endpoint=ping, is_open=True),
        Route(method="GET", path="/version", endpoint=version),
        Route(method="GET", path="/load", endpoint=load),
        Route(method="GET", path="/metrics", endpoint=show_metrics),
    )

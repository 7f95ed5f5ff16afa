"""POST /start_profile and /stop_profile; only with --profiler-config.

What is profiled and where traces are written is set at server start: clients cannot name files.
"""

from __future__ import annotations

from starlette.responses import Response

from dovetail.interfaces.api import Api, Route
from dovetail.interfaces.data.profile import GET_READY, START, STOP
from dovetail.interfaces.executor import WorkerCall
from dovetail.interfaces.plugin import Info
from dovetail.server.endpoint import ServerOf

FLAG = "profiler_config"


async def start_profile(server: ServerOf) -> Response:
    """Start torch's profiler on every rank of every engine, between two steps."""
    for method in (GET_READY, START):  # on every rank, or on none
        await server.engine.collective_rpc(WorkerCall(method=method))
    return Response(status_code=200)


async def stop_profile(server: ServerOf) -> dict[str, list[str]]:
    """Stop the profilers and return the files of the traces once they are written, each on the
    machine of its rank."""
    return {"traces": await server.engine.collective_rpc(WorkerCall(method=STOP))}


class ProfilingApi(Api):
    """Starts and stops the profiler of all ranks."""

    info = Info(summary="profiles the forward passes of all ranks")
    routes = (
        Route(method="POST", path="/start_profile", endpoint=start_profile, flag=FLAG),
        Route(method="POST", path="/stop_profile", endpoint=stop_profile, flag=FLAG),
    )

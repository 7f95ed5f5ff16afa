"""POST and GET /deploy: replace a supervised server by a new one, and see how that goes.

The new server has the command line of this one, and what the configuration file has then.
"""

from __future__ import annotations

from starlette.responses import Response

from dovetail.errors import RequestError
from dovetail.server.endpoint import Reply, ServerOf, json_reply
from dovetail_plugins.supervised import deployment
from dovetail_plugins.supervised.deployment import Deployment, State


class Deployed(Reply):
    """The number of the server that serves, and the state of the latest change."""

    generation: int
    state: State
    asked: int
    reason: str


async def show_deployment(server: ServerOf) -> Response:
    """Return the state of the latest change of the server."""
    return _reply(_own()[1])


async def deploy(server: ServerOf) -> Response:
    """Start a new server, which takes over once it listens; this one then answers what it has, and
    ends. Returns at once; GET /deploy says how it goes."""
    pid, found = _own()
    if found.state == "starting":
        raise RequestError("a new server is starting already.", status=409)
    deployment.ask(pid)
    return _reply(found)


def _own() -> tuple[int, Deployment]:
    own = deployment.read_own()
    if own is None:
        fix = "start it with `dovetail supervise` in place of `dovetail serve`."
        raise RequestError("this server has no supervisor to replace it.", fix=fix, status=409)
    return own


def _reply(found: Deployment) -> Response:
    return json_reply(
        Deployed(
            generation=found.generation,
            state=found.state,
            asked=found.asked,
            reason=found.reason,
        ),
        [],
    )

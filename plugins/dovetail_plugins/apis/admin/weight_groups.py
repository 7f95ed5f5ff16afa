"""POST /init_weights_update_group, /update_weights_from_distributed, /destroy_weights_update_group:
a trainer sends weights through a process group. GET /get_world_size: the ranks of all engines.

The trainer is rank 0, and announces here what it then broadcasts. The fields are SGLang's.
"""

from __future__ import annotations

import secrets
from typing import Annotated, Any, Literal

from pydantic import Field
from starlette.responses import Response

from dovetail.errors import RequestError
from dovetail.interfaces.executor import WorkerCall
from dovetail.server.endpoint import App, Body, Reply, ServerOf, json_reply
from dovetail_plugins.apis.admin.weights import Version, replace_weights
from dovetail_plugins.weight_transfer.described import announced_tensors
from dovetail_plugins.weight_transfer.sent_folder import (
    new_folder,
    remove_sent,
    version_of_folder,
)

GROUP = "weight_update_group"
Name = Annotated[str, Field(pattern=r"^[\x21-\x7e]+$", max_length=128)]
TensorName = Annotated[str, Field(min_length=1, max_length=1024)]
Shape = Annotated[list[Annotated[int, Field(ge=0)]], Field(max_length=16)]


class InitGroupRequest(Body):
    """Where the trainer, rank 0, waits for the ranks of the engines, which are numbered from
    `rank_offset` on; `timeout`: seconds for the meeting, and later for each tensor."""

    master_address: Annotated[str, Field(min_length=1, max_length=256)]
    master_port: Annotated[int, Field(ge=1, le=65535)]
    world_size: Annotated[int, Field(ge=2, le=65536)]
    rank_offset: Annotated[int, Field(ge=1, le=65536)] = 1
    group_name: Name = GROUP
    backend: Literal["nccl", "gloo"] | None = None
    timeout: Annotated[float, Field(gt=0, le=3600)] = 60.0


class UpdateFromDistributedRequest(Body):
    """The tensors that the trainer broadcasts, in this order. With `flush_cache` false more of the
    same update follow in another request, and nothing is used yet."""

    names: Annotated[list[TensorName], Field(min_length=1)]
    dtypes: list[Name]
    shapes: list[Shape]
    group_name: Name = GROUP
    flush_cache: bool = True
    abort_all_requests: bool = False
    weight_version: Version | None = None


class DestroyGroupRequest(Body):
    """The name of a group."""

    group_name: Name = GROUP


class GroupReply(Reply):
    """SGLang's answer."""

    success: bool = True
    message: str


class WorldSize(Reply):
    """vLLM's answer."""

    world_size: int


async def get_world_size(server: ServerOf) -> Response:
    """Return the number of ranks of all engines; with a trainer, a group has one more."""
    return json_reply(WorldSize(world_size=len(await _groups(server))), [])


async def init_group(server: ServerOf, body: InitGroupRequest) -> Response:
    """Have every rank of every engine join a trainer's process group. The trainer opens it
    meanwhile."""
    ignored = list(server.fields.check(body, is_answered=False))
    num_ranks = len(await _groups(server))
    if body.rank_offset + num_ranks > body.world_size:
        raise RequestError(
            f"{num_ranks} ranks of engines do not fit into a group of {body.world_size}, from rank "
            f"{body.rank_offset} on.",
            where="world_size",
            fix=f"give at least {body.rank_offset + num_ranks}.",
        )
    meeting = {
        "address": body.master_address,
        "port": body.master_port,
        "world_size": body.world_size,
        "name": body.group_name,
        "backend": body.backend,
        "timeout_s": body.timeout,
        "offset": body.rank_offset,
        "ticket": secrets.token_hex(8),
        "members": num_ranks,
    }
    try:
        await _call(server, "join_weight_group", meeting)
    except RequestError:
        await _call(server, "leave_weight_group", {"name": body.group_name})
        raise
    message = f"{num_ranks} ranks have joined."
    return json_reply(GroupReply(message=message), ignored)


async def update_from_distributed(server: ServerOf, body: UpdateFromDistributedRequest) -> Response:
    """Receive tensors that a trainer broadcasts in its group, and use them from the next step on,
    as /update_weights does. Steps wait until all have come."""
    ignored = list(server.fields.check(body, is_answered=False))
    announced = announced_tensors(body.names, body.dtypes, body.shapes)
    found = [groups.get(body.group_name) for groups in await _groups(server)]
    if found != [len(found)] * len(found):
        raise RequestError(
            f'not every rank is in a group "{body.group_name}".',
            where="group_name",
            fix="POST /init_weights_update_group, also once an engine has started again.",
            status=409,
        )
    proposed = new_folder(sum(one.num_bytes for one in announced))
    sent = {
        "name": body.group_name,
        "names": body.names,
        "dtypes": body.dtypes,
        "shapes": body.shapes,
        "folder": proposed,
        "is_last": body.flush_cache,
    }
    try:
        folder = (await _call(server, "receive_weights", sent))[0]
    except RequestError:
        remove_sent(proposed)
        raise
    if folder != proposed:
        remove_sent(proposed)
    if not body.flush_cache:
        message = f"{len(announced)} tensors have come, and are used once the others have."
        return json_reply(GroupReply(message=message), ignored)
    version = body.weight_version or version_of_folder(folder)
    try:
        running = "abort" if body.abort_all_requests else "keep"
        await replace_weights(server, {"path": folder, "version": version, "running": running})
    except RequestError:
        remove_sent(folder)
        raise
    message = f"The weights of version {version} are in use."
    return json_reply(GroupReply(message=message), ignored)


async def destroy_group(server: ServerOf, body: DestroyGroupRequest) -> Response:
    """Have every rank of every engine leave a trainer's process group."""
    ignored = list(server.fields.check(body, is_answered=False))
    num_ranks = sum(body.group_name in groups for groups in await _groups(server))
    await _call(server, "leave_weight_group", {"name": body.group_name})
    return json_reply(GroupReply(message=f"{num_ranks} ranks have left."), ignored)


async def _groups(server: App) -> list[dict[str, int]]:
    """Return the groups of every rank, and how many ranks of this server each has."""
    return await _call(server, "weight_groups", {})


async def _call(server: App, method: str, fields: dict[str, Any]) -> list[Any]:
    return await server.engine.collective_rpc(WorkerCall(method=method, kwargs=fields))

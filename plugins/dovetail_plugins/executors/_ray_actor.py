"""RankActor: a Ray actor whose process is one rank.

Ray places it, starts it and ends it; orders and answers go over sockets to the executor's door.
"""

from __future__ import annotations

import os
import socket

import msgspec

from dovetail.observability.logging import LogSettings
from dovetail_plugins.executors._ray_places import VISIBLE, own_place
from dovetail_plugins.ranks.door import DoorAddress, Hello, come_in
from dovetail_plugins.ranks.messages import RankTask
from dovetail_plugins.ranks.remote import serve_remote


class ActorBoot(msgspec.Struct, frozen=True, kw_only=True):
    """An actor's task. `gpus` are all ranks' GPUs on its machine: they reach one another only if
    each sees all."""

    task: RankTask
    door: DoorAddress
    gpus: tuple[str, ...]
    log: LogSettings | None


class RankActor:
    """Reports its place, then runs the rank of its boot message until the executor ends."""

    def place(self) -> bytes:
        """Return this actor's Place, encoded."""
        return own_place()

    def serve(self, boot: bytes) -> int:
        """Be a rank; return its exit status."""
        told = msgspec.msgpack.decode(boot, type=ActorBoot)
        if told.gpus:
            os.environ[VISIBLE] = ",".join(told.gpus)
        if told.log is not None:
            told.log.apply()
        rank = told.task.run.rank.rank
        hello = Hello(rank=rank, channel="", process=os.getpid(), host=socket.gethostname())
        return serve_remote(told.task, come_in(told.door, hello))

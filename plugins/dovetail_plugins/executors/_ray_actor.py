"""RankActor: a Ray actor whose process is one rank.

Ray places it, starts it and ends it; orders and answers go over sockets.
"""

from __future__ import annotations

import os

import msgspec

from dovetail.observability.logging import LogSettings
from dovetail_plugins.executors._ray_places import VISIBLE, own_place
from dovetail_plugins.ranks.messages import RankTask
from dovetail_plugins.ranks.rank_listener import ListenerAddress, join_rank
from dovetail_plugins.ranks.remote import serve_remote


class ActorBoot(msgspec.Struct, frozen=True, kw_only=True):
    """An actor's task. `gpus` are all ranks' GPUs on its machine: they reach one another only if
    each sees all."""

    task: RankTask
    listener: ListenerAddress
    gpus: tuple[str, ...]
    log: LogSettings | None


class RankActor:
    """Reports its place, then runs the rank of its boot message until the executor ends."""

    def place(self) -> bytes:
        """Return this actor's Place, encoded."""
        return own_place()

    def serve(self, boot: bytes) -> int:
        """Be a rank; return its exit status."""
        decoded = msgspec.msgpack.decode(boot, type=ActorBoot)
        if decoded.gpus:
            os.environ[VISIBLE] = ",".join(decoded.gpus)
        if decoded.log is not None:
            decoded.log.apply()
        return serve_remote(decoded.task, join_rank(decoded.listener, decoded.task.run.rank.rank))

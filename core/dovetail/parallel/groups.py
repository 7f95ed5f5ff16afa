"""Group: the ranks that share one divided layer, and how a process joins them.

A group of size 1 needs no process group and no network.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch.distributed as dist

from dovetail.errors import ConfigError
from dovetail.interfaces.spec import RankSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """`rank` of `size`; `handle` is torch's process group, None when size is 1."""

    rank: int = 0
    size: int = 1
    handle: dist.ProcessGroup | None = None

    def share(self, count: int, what: str) -> int:
        """Return this rank's part of `count` equal things. Raises: ConfigError if uneven."""
        if count % self.size:
            raise ConfigError(
                f"{what} ({count}) cannot be divided evenly over {self.size} ranks.",
                where="--tensor-parallel-size",
                fix=f"use a number of ranks that divides {count}.",
            )
        return count // self.size


ALONE = Group()


def join(rank: RankSpec, *, backend: str, address: str) -> None:
    """Make this process one of `rank.world_size`; `address` is a torch init_method URL.

    Does nothing for a single rank. Blocks until all ranks have joined.
    """
    if rank.world_size > 1:
        dist.init_process_group(
            backend, init_method=address, rank=rank.rank, world_size=rank.world_size
        )


def tensor_group(rank: RankSpec) -> Group:
    """Return the ranks that divide layers with this one: tensor_size consecutive ranks.

    Before `join` the group has no handle: layers can be built and looked at, but not run.
    """
    if rank.tensor_size == 1:
        return ALONE
    handle = _tensor_handle(rank) if dist.is_initialized() else None
    return Group(rank=rank.tensor_rank, size=rank.tensor_size, handle=handle)


@cache
def _tensor_handle(rank: RankSpec) -> dist.ProcessGroup | None:
    """Return torch's group of this rank's neighbours. All ranks come here at the same point."""
    own: dist.ProcessGroup | None = None
    for first in range(0, rank.world_size, rank.tensor_size):
        members = list(range(first, first + rank.tensor_size))
        handle = dist.new_group(members)
        if rank.rank in members:
            own = handle
    return own


def leave() -> None:
    """Forget all groups and leave the process group, if one was joined."""
    _tensor_handle.cache_clear()
    if dist.is_initialized():
        dist.destroy_process_group()

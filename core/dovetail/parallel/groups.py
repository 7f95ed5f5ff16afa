"""Group: the ranks that share one divided layer, and how a process joins them.

A group of size 1 needs no communicator and no network.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from dovetail import registry
from dovetail.errors import ConfigError
from dovetail.interfaces.communicator import Communicator, Membership
from dovetail.interfaces.spec import RankSpec, Selection

TENSOR, CONTEXT = "tensor", "context"


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """`rank` of `size`; `communicator` is None when size is 1, and until the ranks have joined."""

    rank: int = 0
    size: int = 1
    communicator: Communicator | None = None

    def share(self, count: int, what: str, where: str = "--tensor-parallel-size") -> int:
        """Return this rank's part of `count` equal things; `where` is the flag that divides them.
        Raises: ConfigError if uneven."""
        if count % self.size:
            raise ConfigError(
                f"{what} ({count}) cannot be divided evenly over {self.size} ranks.",
                where=where,
                fix=f"use a number of ranks that divides {count}.",
            )
        return count // self.size

    def joined(self) -> Communicator:
        """Return the communicator of a group that has joined."""
        assert self.communicator is not None, "the ranks have not joined"
        return self.communicator


ALONE = Group()
_joined: dict[str, Communicator] = {}
"""The groups that this process has joined, by what they divide."""


def join(
    rank: RankSpec,
    *,
    communicator: Selection,
    address: str,
    device: str = "cpu",
    is_open: bool = False,
) -> None:
    """Make this process one of `rank.world_size`, which all meet at `address` (see Membership);
    where that is not open without them, the first rank opens it.

    Does nothing for a single rank. Blocks until all ranks have joined. Raises: ConfigError
    """
    if rank.tensor_size > 1:
        member = Membership(
            rank=rank.tensor_rank,
            size=rank.tensor_size,
            group=f"{TENSOR}-{rank.rank // rank.tensor_size}",
            address=address,
            is_host=rank.rank == 0 and not is_open,
            device=device,
        )
        _joined[TENSOR] = registry.make(communicator, member)
        if 1 < rank.context_size < rank.tensor_size:
            divided = replace(
                member,
                rank=rank.rank % rank.context_size,
                size=rank.context_size,
                group=f"{CONTEXT}-{rank.rank // rank.context_size}",
            )
            _joined[CONTEXT] = registry.make(communicator, divided)


def tensor_group(rank: RankSpec) -> Group:
    """Return the ranks that divide layers with this one: tensor_size consecutive ranks.

    Before `join` the group has no communicator: layers can be built and looked at, but not run.
    """
    if rank.tensor_size == 1:
        return ALONE
    return Group(rank=rank.tensor_rank, size=rank.tensor_size, communicator=_joined.get(TENSOR))


def context_group(rank: RankSpec) -> Group:
    """Return the ranks that divide each request's KV cache with this one: context_size consecutive
    ranks of those that divide layers; where they are all of these, they exchange as those do."""
    if rank.context_size == 1:
        return ALONE
    name = TENSOR if rank.context_size == rank.tensor_size else CONTEXT
    own = rank.rank % rank.context_size
    return Group(rank=own, size=rank.context_size, communicator=_joined.get(name))


def leave() -> None:
    """Leave all groups that were joined. May be called twice."""
    while _joined:
        _joined.popitem()[1].close()

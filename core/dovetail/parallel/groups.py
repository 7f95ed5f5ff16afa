"""Group: the ranks that share one divided layer, and how a process joins them.

A group of size 1 needs no communicator and no network.
"""

from __future__ import annotations

from dataclasses import dataclass

from dovetail import registry
from dovetail.errors import ConfigError
from dovetail.interfaces.communicator import Communicator, Membership
from dovetail.interfaces.data.spec import RankSpec, Selection
from dovetail.parallel.halves import HandingOver

TENSOR, CONTEXT, DATA, EXPERTS = "tensor", "context", "data", "experts"
BEFORE, AFTER = "stage before", "stage after"


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """`rank` of `size`. `communicator` is None if size is 1, and until the ranks have joined."""

    rank: int = 0
    size: int = 1
    communicator: Communicator | None = None

    def share(self, count: int, what: str, where: str = "--tensor-parallel-size") -> int:
        """Return this rank's share of `count` equal parts; `where` is the flag that divides them.
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
"""Name of a group -> its communicator, for the groups that this process has joined."""


def join(
    rank: RankSpec,
    *,
    communicator: Selection,
    address: str,
    device: str = "cpu",
    is_open: bool = False,
    hands_over: bool = False,
) -> None:
    """Join the groups of this rank; all `rank.world_size` ranks meet at `address` (see Membership).

    Unless `is_open`, the first rank opens the address. With `hands_over`, calls hand over to the
    other half of a step. Does nothing for a single rank. Blocks until all ranks have joined.
    Raises: ConfigError
    """
    for name, (number, size, group) in _groups_of(rank).items():
        member = Membership(
            rank=number,
            size=size,
            group=group,
            address=address,
            is_host=rank.rank == 0 and not is_open and not _joined,
            device=device,
        )
        built = registry.make(communicator, member)
        _joined[name] = HandingOver(built) if hands_over else built


def _groups_of(rank: RankSpec) -> dict[str, tuple[int, int, str]]:
    """Return this rank's groups: its number in each, and the group's size and name. Pipeline stages
    join one after the other, which avoids a deadlock."""
    stage, found = rank.stage, {}
    if rank.tensor_size > 1:
        found[TENSOR] = (rank.tensor_rank, rank.tensor_size, f"{TENSOR}-{stage}")
    if 1 < rank.context_size < rank.tensor_size:
        which, place = divmod(rank.rank, rank.context_size)
        found[CONTEXT] = (place, rank.context_size, f"{CONTEXT}-{which}")
    if not rank.is_first_stage:
        found[BEFORE] = (1, 2, f"stages-{stage - 1}-{stage}-{rank.tensor_rank}")
    if not rank.is_last_stage:
        found[AFTER] = (0, 2, f"stages-{stage}-{stage + 1}-{rank.tensor_rank}")
    return found


def tensor_group(rank: RankSpec) -> Group:
    """Return this rank's tensor-parallel group: tensor_size consecutive ranks.

    Before `join` the group has no communicator: layers can be built and inspected, but not run.
    """
    if rank.tensor_size == 1:
        return ALONE
    return Group(rank=rank.tensor_rank, size=rank.tensor_size, communicator=_joined.get(TENSOR))


def stage_before() -> Communicator:
    """Return the communicator shared with the rank that sends hidden states to this one."""
    return _joined[BEFORE]


def stage_after() -> Communicator:
    """Return the communicator shared with the rank that receives hidden states from this one."""
    return _joined[AFTER]


def join_engines(
    rank: RankSpec,
    *,
    communicator: Selection,
    address: str,
    device: str = "cpu",
    hands_over: bool = False,
) -> None:
    """Join the ranks of several engines over which experts are divided, at `address`. Does nothing
    for one engine. Raises: ConfigError"""
    if rank.data_size > 1:
        column = f"{DATA}-{rank.tensor_rank}"
        groups = {DATA: (rank.data_rank, rank.data_size, column)}
        if rank.tensor_size > 1:
            groups[EXPERTS] = (rank.expert_rank, rank.expert_size, EXPERTS)
        for word, (place, size, group) in groups.items():
            member = Membership(rank=place, size=size, group=group, address=address, device=device)
            own = registry.make(communicator, member)
            _joined[word] = HandingOver(own, takes_turns=True) if hands_over else own


def data_group(rank: RankSpec) -> Group:
    """Return the ranks at the same position in every engine over which experts are divided."""
    if rank.data_size == 1:
        return ALONE
    return Group(rank=rank.data_rank, size=rank.data_size, communicator=_joined.get(DATA))


def expert_group(rank: RankSpec) -> Group:
    """Return all ranks over which experts are divided, engine by engine."""
    if rank.data_size == 1:
        return tensor_group(rank)
    if rank.tensor_size == 1:
        return data_group(rank)
    return Group(rank=rank.expert_rank, size=rank.expert_size, communicator=_joined.get(EXPERTS))


def context_group(rank: RankSpec) -> Group:
    """Return the ranks that divide each request's KV cache with this one: context_size consecutive
    ranks of the tensor-parallel group. If they are the whole group, they use its communicator."""
    if rank.context_size == 1:
        return ALONE
    name = TENSOR if rank.context_size == rank.tensor_size else CONTEXT
    own = rank.rank % rank.context_size
    return Group(rank=own, size=rank.context_size, communicator=_joined.get(name))


def leave() -> None:
    """Leave all groups that were joined. May be called twice."""
    while _joined:
        _joined.popitem()[1].close()

"""A group of one needs no network; larger ones divide evenly or say what to change."""

from __future__ import annotations

import pytest
import torch

from dovetail.errors import ConfigError
from dovetail.interfaces.data.spec import RankSpec, Selection
from dovetail.parallel.collectives import all_gather, all_reduce
from dovetail.parallel.groups import ALONE, Group, join, leave, tensor_group


def test_one_rank_is_alone() -> None:
    nothing = Selection(kind="communicator", name="none", target="nowhere:Nothing")
    join(RankSpec(), communicator=nothing, address="nowhere")
    assert tensor_group(RankSpec()) is ALONE
    x = torch.arange(4.0)
    assert all_reduce(x, ALONE) is x
    assert all_gather(x, ALONE) is x
    leave()


def test_shares_are_even() -> None:
    assert Group(rank=1, size=4).share(12, "heads") == 3
    with pytest.raises(ConfigError, match=r"heads \(10\).*4 ranks"):
        Group(rank=1, size=4).share(10, "heads")


def test_ranks_that_have_not_joined_cannot_meet() -> None:
    group = tensor_group(RankSpec(rank=1, world_size=2, tensor_rank=1, tensor_size=2))
    assert (group.rank, group.size) == (1, 2)
    with pytest.raises(AssertionError, match="joined"):
        all_reduce(torch.ones(1), group)

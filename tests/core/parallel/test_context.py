"""A cache that is divided over ranks: together they attend as one that has all of it does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from dovetail.errors import ConfigError
from dovetail.interfaces.attention import AttentionSpec
from dovetail.interfaces.data.spec import RankSpec
from dovetail.parallel.context import joined, over_ranks
from dovetail.parallel.groups import context_group, tensor_group
from dovetail_testing.attention_scenario import Scene, UsageCounter
from dovetail_testing.reference import ReferenceAttention
from support.divided_attention import DividedAttention

SPEC = AttentionSpec(num_heads=12, num_kv_heads=1, head_size=8, scale=0.35)
RULES = {
    "plain": {},
    "window": {"window_tokens": 6},
    "window of all": {"window_tokens": 12, "soft_cap": 2.0},
}
STEPS: list[list[UsageCounter]] = [
    [[(0, 1)], [(0, 1)], [(0, 1), (1, 1)], [(0, 2), (1, 1), (2, 5)]],
    [[(0, 5), (1, 8), (2, 1)], [(0, 1), (1, 1), (2, 1)], [(2, 1), (0, 1), (1, 1)]],
    [[(0, 17)], [(1, 3), (0, 7)], [(1, 1), (2, 9), (0, 4)], [(0, 1), (1, 1), (2, 1)]],
]
MAX_DIFFERENCE = 2e-6


@pytest.fixture(scope="module", params=[2, 3])
def divided(request: pytest.FixtureRequest) -> Iterator[DividedAttention]:
    with DividedAttention([ReferenceAttention() for _ in range(request.param)]) as made:
        yield made


def scene(divided: DividedAttention, spec: AttentionSpec = SPEC) -> Scene:
    """Return rows over a poisoned cache of blocks of two tokens a rank."""
    return Scene(divided, spec, num_rows=3, block_tokens=2 * divided.size)


@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("rule", RULES)
def test_divided_attention_is_attention(divided: DividedAttention, rule: str, sinks: bool) -> None:
    for steps in STEPS:
        stage = scene(divided, replace(SPEC, **RULES[rule]))
        stage.sinks = torch.linspace(-2, 3, SPEC.num_heads) if sinks else None
        for counts in steps:
            got, wanted = stage.step(counts)
            torch.testing.assert_close(got, wanted, rtol=0, atol=MAX_DIFFERENCE)


def test_each_rank_keeps_its_share(divided: DividedAttention) -> None:
    """Of a row's tokens each rank has written its own, and others' into the null block alone."""
    stage = scene(divided)
    stage.step([(0, 13)])
    for rank, cache in enumerate(stage.cache):
        written = (~cache.isnan()).all(dim=-1).flatten(3)[0, 1:].sum()
        assert written == len(range(rank, 13, divided.size))


def test_drafts_and_shared_blocks(divided: DividedAttention) -> None:
    """Drafts are rows of one token that share blocks; a prefix is shared in whole blocks."""
    stage = scene(divided)
    stage.step([(0, 7)])
    stage.blocks[1] = stage.blocks[2] = stage.blocks[0]
    stage.lengths = [7, 8, 9]
    for counts in ([(0, 1), (1, 1), (2, 1)], [(0, 1), (1, 1), (2, 2)]):
        got, wanted = stage.step(counts)
        torch.testing.assert_close(got, wanted, rtol=0, atol=MAX_DIFFERENCE)


def test_what_ranks_exchange(divided: DividedAttention) -> None:
    """A step sends queries, and values with a log-sum-exp a head: nothing grows with the row."""
    stage, size = scene(divided), divided.size
    stage.step([(0, 30)])
    for link in divided.links:
        link.num_gathered = 0
    stage.step([(0, 1)])
    heads = SPEC.num_heads // size
    told = size * heads * (SPEC.head_size + 1)  # this communicator's exchange gathers everything
    for link in divided.links:
        assert link.num_gathered == (size - 1) * (heads * SPEC.head_size + told)


def test_parts_of_nothing_do_not_count() -> None:
    values = torch.randn(3, 2, 4, 5)
    lse = torch.randn(3, 2, 4)
    lse[1], values[1] = -torch.inf, 0.0
    alone = joined(values[[0, 2]], lse[[0, 2]], None)
    torch.testing.assert_close(joined(values, lse, None), alone)


def test_a_window_that_does_not_divide_is_told(divided: DividedAttention) -> None:
    stage = scene(divided, replace(SPEC, window_tokens=7))
    with pytest.raises(ConfigError, match="window of 7 tokens cannot be divided evenly"):
        stage.step([(0, 3)])


def test_groups_of_ranks() -> None:
    """Consecutive ranks divide a cache; those that divide all layers with it exchange as these."""
    whole = RankSpec(rank=5, world_size=8, tensor_rank=5, tensor_size=8, context_size=2)
    assert (context_group(whole).rank, context_group(whole).size) == (1, 2)
    assert (tensor_group(whole).rank, tensor_group(whole).size) == (5, 8)
    backend = ReferenceAttention()
    assert over_ranks(backend, RankSpec(world_size=2, tensor_size=2)) is backend
    assert over_ranks(backend, whole) is not backend

"""Experts over ranks: what is placed where, what is refused, and flags that have no effect."""

from __future__ import annotations

import logging

import pytest

from dovetail.config.config import Config
from dovetail.config.rules.parallel.experts import expert_settings, over_engines, select_all2all
from dovetail.config.rules.parallel.ranks import rank_spec
from dovetail.errors import BrokenPlugin, ConfigError
from dovetail.interfaces.data.spec import Selection
from dovetail.parallel.experts import placed_experts
from dovetail.parallel.groups import Group
from dovetail_testing.contract import model_spec

pytest.importorskip("dovetail_plugins")

FILES = Selection(
    kind="load_format",
    name="safetensors",
    target="dovetail_plugins.load_formats.safetensors:Safetensors",
)
SHARDS = Selection(
    kind="load_format",
    name="sharded_state",
    target="dovetail_plugins.load_formats.sharded_state:ShardedState",
)
MIXTURE = {"num_experts": 12, "num_experts_per_tok": 2}


def placed(source: Selection = FILES, *, is_mixture: bool = True, **fields: object) -> str:
    """Return where experts go with these fields of the config."""
    config = Config.from_fields(fields)
    model = model_spec(hf_config=MIXTURE if is_mixture else {})
    rank = over_engines(config.model, config.parallel, model, rank_spec(config.parallel))
    return expert_settings(config.cache, config.parallel, config.origins, model, rank, source)[0]


@pytest.mark.parametrize(
    ("strategy", "held"),
    [("linear", [(0, 1, 2, 3), (8, 9, 10, 11)]), ("round_robin", [(0, 3, 6, 9), (2, 5, 8, 11)])],
)
def test_whole_experts_are_placed(strategy: str, held: list[tuple[int, ...]]) -> None:
    placement = placed(
        tensor_parallel_size=3, enable_expert_parallel=True, expert_placement_strategy=strategy
    )
    assert placed_experts(placement, 12, 0, Group(size=3))[::2] == tuple(held)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"enable_expert_parallel": True}, "one rank holds all experts"),
        (
            {"enable_expert_parallel": True, "tensor_parallel_size": 2, "is_mixture": False},
            "the model has no experts",
        ),
        ({"expert_placement_strategy": "round_robin"}, "it needs --enable-expert-parallel"),
        ({"eplb_config": {"window_size": 3}}, "it needs --enable-eplb"),
        ({"tensor_parallel_size": 2}, ""),
    ],
)
def test_a_flag_without_effect_is_told(
    fields: dict[str, bool], told: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert placed(**fields) == ""
    assert [record.message.endswith(told) for record in caplog.records] == [True] * bool(told)


@pytest.mark.parametrize(
    ("source", "size", "told"),
    [
        (FILES, 5, "12 experts cannot be divided evenly over 5 ranks"),
        (SHARDS, 2, "sharded_state hold a part of every expert for each rank"),
    ],
)
def test_what_cannot_be_divided_is_refused(source: Selection, size: int, told: str) -> None:
    with pytest.raises(ConfigError, match=told) as caught:
        placed(source, tensor_parallel_size=size, enable_expert_parallel=True)
    assert caught.value.where == "--enable-expert-parallel"
    assert caught.value.fix


def everywhere(num_experts: int, num_ranks: int) -> list[range]:
    return [range(num_experts // num_ranks)] * num_ranks


def test_a_placement_that_leaves_experts_out_is_told() -> None:
    with pytest.raises(BrokenPlugin, match="each of 2 ranks 2 of 4 experts, and"):
        placed_experts(f"{__name__}:everywhere", 4, 0, Group(size=2))
    with pytest.raises(ConfigError, match=r"experts \(5\) cannot be divided evenly over 2") as told:
        placed_experts("dovetail_plugins.expert_placements:linear", 5, 0, Group(size=2))
    assert told.value.where == "--enable-expert-parallel"


def test_weights_in_host_memory_do_not_move() -> None:
    fields = {"enable_expert_parallel": True, "enable_eplb": True, "cpu_offload_gb": 1}
    with pytest.raises(ConfigError, match="copied from host memory"):
        placed(tensor_parallel_size=2, **fields)


@pytest.mark.parametrize(
    ("fields", "size"),
    [
        ({"enable_expert_parallel": True}, 3),
        ({}, 1),
        ({"enable_expert_parallel": True, "data_parallel_rank": 1}, 1),
        ({"enable_expert_parallel": True, "is_mixture": False}, 1),
    ],
)
def test_experts_are_divided_over_the_engines_of_a_server(
    fields: dict[str, object], size: int
) -> None:
    is_mixture = bool(fields.pop("is_mixture", True))
    config = Config.from_fields({"data_parallel_size": 3, "tensor_parallel_size": 2, **fields})
    model = model_spec(hf_config=MIXTURE if is_mixture else {})
    rank = over_engines(config.model, config.parallel, model, rank_spec(config.parallel))
    assert (rank.data_size, rank.expert_size) == (size, 2 * size)
    chosen = select_all2all(config.parallel, config.plugin, config.origins, rank)
    assert (chosen.name if chosen else None) == ("allgather_reducescatter" if size > 1 else None)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"enable_sleep_mode": True}, "cannot sleep while 4 others need its experts"),
        ({"data_parallel_size": 5}, "12 experts cannot be divided evenly over 5 ranks"),
    ],
)
def test_engines_that_cannot_share_experts_are_refused(
    fields: dict[str, object], reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        placed(**{"data_parallel_size": 5, "enable_expert_parallel": True, **fields})


def test_an_exchange_of_one_engine_has_no_effect(caplog: pytest.LogCaptureFixture) -> None:
    fields = {"tensor_parallel_size": 2, "all2all_backend": "all_to_all"}
    config = Config.from_fields({**fields, "enable_expert_parallel": True})
    with caplog.at_level(logging.WARNING):
        assert (
            select_all2all(
                config.parallel, config.plugin, config.origins, rank_spec(config.parallel)
            )
            is None
        )
    assert "--all2all-backend has no effect" in caplog.text

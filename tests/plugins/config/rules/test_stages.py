"""Stages: how layers are divided, what cannot be, and what a stage's KV cache holds."""

from __future__ import annotations

from typing import Any

import pytest

from dovetail import registry
from dovetail.config.config import Config
from dovetail.config.rules.parallel.ranks import cached_model, rank_spec
from dovetail.config.rules.parallel.stages import check_model, check_parts, even_split, staged
from dovetail.errors import ConfigError
from dovetail.interfaces.data.spec import RankSpec, Selection
from dovetail_testing.contract import model_spec

WHOLE = Selection(kind="model", name="replay", target="dovetail_testing.models:ReplayModel")


def divided(num_layers: int, **fields: Any) -> RankSpec:
    """Return the first rank of a model of so many layers under these flags."""
    config = Config.from_fields(fields)
    return staged(rank_spec(config.parallel), config.parallel, model_spec(num_layers=num_layers))


def test_layers_are_divided_evenly() -> None:
    assert even_split(12, 4) == (3, 3, 3, 3)
    assert even_split(11, 3) == (4, 4, 3), "the last stage has the head, too"
    rank = divided(5, pipeline_parallel_size=2, tensor_parallel_size=2)
    assert (rank.world_size, rank.num_stages, rank.stage_layers) == (4, 2, (3, 2))
    assert (rank.layers(5), rank.first_of_last_stage) == (range(3), 2)
    assert divided(5).layers(5) == range(5)


def test_a_split_is_read() -> None:
    rank = divided(6, pipeline_parallel_size=3, pipeline_layer_split="1, 3,2")
    assert rank.stage_layers == (1, 3, 2)


@pytest.mark.parametrize(
    ("fields", "told", "fix"),
    [
        ({"pipeline_parallel_size": 7}, "6 layers cannot be divided over 7 stages", "at most 6"),
        ({"pipeline_layer_split": "3,3"}, "layers of 2 stages, and there are 1", "like 6,"),
        ({"pipeline_layer_split": "5"}, "5 are 5 layers, and the model has 6", "like 6,"),
        (
            {"pipeline_parallel_size": 2, "pipeline_layer_split": "6,0"},
            "not a list of numbers of layers",
            "like 3,3,",
        ),
        (
            {"pipeline_parallel_size": 2, "pipeline_layer_split": "a,b"},
            "not a list of numbers of layers",
            "like 3,3,",
        ),
    ],
)
def test_what_cannot_be_is_told(fields: dict[str, Any], told: str, fix: str) -> None:
    with pytest.raises(ConfigError, match=told) as caught:
        divided(6, **fields)
    assert caught.value.where in ("--pipeline-parallel-size", "--pipeline-layer-split")
    assert fix in str(caught.value.fix)


def test_plugins_that_know_no_stages_are_told() -> None:
    two = divided(2, pipeline_parallel_size=2)
    check_model(WHOLE, RankSpec())
    with pytest.raises(
        ConfigError, match="replay cannot be divided into stages: its plugin builds"
    ):
        check_model(WHOLE, two)
    pytest.importorskip("dovetail_plugins")
    mp, uni = (registry.choose("executor", name) for name in ("mp", "uni"))
    check_parts(two, mp, registry.choose("scheduler", "continuous"))
    check_parts(RankSpec(), uni)
    with pytest.raises(ConfigError, match="executor uni does not work with several stages"):
        check_parts(two, mp, uni)


@pytest.mark.parametrize(
    ("config", "num_layers", "num_sliding"),
    [
        ({}, 3, 0),
        ({"layer_types": ["sliding_attention"] * 3 + ["full_attention"] * 2}, 5, 3),
        ({"sliding_window_pattern": 2}, 3, 2),
    ],
)
def test_a_cache_has_room_for_the_most_layers_of_each_kind(
    config: dict[str, Any], num_layers: int, num_sliding: int
) -> None:
    rank = divided(5, pipeline_parallel_size=2)
    model = cached_model(model_spec(num_layers=5, hf_config=config), rank)
    assert model.num_layers == num_layers
    kinds = model.hf_config["layer_types"]
    assert kinds.count("sliding_attention") == num_sliding and len(kinds) == num_layers

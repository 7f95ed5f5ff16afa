"""Experts over ranks: whole experts on each, or a part of every expert."""

from __future__ import annotations

import logging

from dovetail import registry
from dovetail.config.checkpoint.experts import experts_of
from dovetail.config.config import Config
from dovetail.errors import ConfigError
from dovetail.interfaces.spec import ModelSpec, RankSpec, Selection

log = logging.getLogger(__name__)

FLAG, STRATEGY = "--enable-expert-parallel", "--expert-placement-strategy"


def expert_placement(config: Config, model: ModelSpec, rank: RankSpec, source: Selection) -> str:
    """Return the "module:function" that says which rank holds which experts; "" where a rank holds
    a part of every expert, or nothing is divided.

    `source` is the load format. Raises: ConfigError where the experts cannot be divided
    """
    section = config.parallel
    num_experts = experts_of(model.hf_config)[0]
    idle = _why_idle(config, num_experts, rank)
    if idle:
        log.warning("%s has no effect: %s", *idle)
    if idle or not section.enable_expert_parallel:
        return ""
    if num_experts % rank.tensor_size:
        raise ConfigError(
            f"{num_experts} experts cannot be divided evenly over {rank.tensor_size} ranks.",
            where=FLAG,
            fix=f"use one of {_divisors(num_experts)} ranks, or leave the flag out.",
        )
    if "divided" in registry.load_selection(source).capabilities:
        raise ConfigError(
            f"the files of load format {source.name} hold a part of every expert for each rank.",
            where=FLAG,
            fix="leave the flag out, or load the checkpoint that they were made from.",
        )
    placement: str = registry.value_of("expert_placement", section.expert_placement_strategy)
    return placement


def _why_idle(config: Config, num_experts: int, rank: RankSpec) -> tuple[str, str] | None:
    """Return a flag that has no effect, and why."""
    if not config.parallel.enable_expert_parallel:
        given = config.is_given("expert_placement_strategy")
        return (STRATEGY, f"it needs {FLAG}") if given else None
    if not num_experts:
        return FLAG, "the model has no experts"
    return (FLAG, "one rank holds all experts") if rank.tensor_size == 1 else None


def _divisors(count: int) -> str:
    return ", ".join(str(size) for size in range(1, count + 1) if count % size == 0)

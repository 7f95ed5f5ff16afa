"""Expert parallelism: whole experts on each rank, or a part of every expert.

Also whether experts are divided over engines, and whether they move.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

import msgspec

from dovetail import registry
from dovetail.config.checkpoint.experts import experts_of
from dovetail.config.rules.parallel.engines import engine_numbers, engines_elsewhere
from dovetail.config.rules.parallel.placement import places_ranks
from dovetail.config.rules.selections import select
from dovetail.config.sections.cache import CacheConfig
from dovetail.config.sections.model import ModelConfig
from dovetail.config.sections.parallel import ParallelConfig
from dovetail.config.sections.plugin import PluginConfig
from dovetail.errors import ConfigError
from dovetail.interfaces.data.spec import ExpertBalanceSpec, ModelSpec, RankSpec, Selection
from dovetail.registry.options import convert

log = logging.getLogger(__name__)

FLAG, STRATEGY = "--enable-expert-parallel", "--expert-placement-strategy"
EXCHANGE = "--all2all-backend"
MOVING, SETTINGS = "--enable-eplb", "--eplb-config"
_KEYS = {
    "window_size": ("window_steps", 1),
    "step_interval": ("interval_steps", 1),
    "num_redundant_experts": ("num_redundant", 0),
}
"""Keys of --eplb-config that are counts -> the field of ExpertBalanceSpec, and the minimum."""


def over_engines(
    model_config: ModelConfig, parallel: ParallelConfig, model: ModelSpec, rank: RankSpec
) -> RankSpec:
    """Return the rank with the number of engines over which experts are divided: all engines of
    this server, if each rank has whole experts. Raises: ConfigError"""
    num_engines = len(engine_numbers(parallel))
    if not parallel.enable_expert_parallel or not experts_of(model.hf_config)[0]:
        return rank
    if num_engines == 1:
        return rank
    if model_config.enable_sleep_mode:
        raise ConfigError(
            f"an engine cannot sleep while {num_engines - 1} others need its experts.",
            where="--enable-sleep-mode",
            fix=f"leave it out, or {FLAG}, or use one engine.",
        )
    if engines_elsewhere(parallel) or parallel.headless:
        raise ConfigError(
            "engines of several machines cannot share experts.",
            where=FLAG,
            fix="leave it out, so that each engine has all experts, or use one machine.",
        )
    if rank.num_stages > 1:
        raise ConfigError(
            "the stages of several engines cannot share experts.",
            where="--pipeline-parallel-size",
            fix=f"leave it out, or {FLAG}, or use one engine.",
        )
    if places_ranks(parallel):
        raise ConfigError(
            "engines share experts on one machine only, and this executor may use others.",
            where="--distributed-executor-backend",
            fix=f"use mp, or leave {FLAG} out.",
        )
    return msgspec.structs.replace(rank, data_size=num_engines)


def select_all2all(
    parallel: ParallelConfig, plugins: PluginConfig, origins: Mapping[str, str], rank: RankSpec
) -> Selection | None:
    """Return how engines exchange tokens; None if they share no experts. Raises: PluginError"""
    if rank.data_size == 1:
        if "all2all_backend" in origins:
            why = "the ranks of one engine have the same tokens"
            log.warning("%s has no effect: %s", EXCHANGE, why)
        return None
    options = plugins.options_of("all2all")
    name = parallel.all2all_backend
    return select("all2all", name, options=options, where=EXCHANGE)


def expert_settings(
    cache: CacheConfig,
    parallel: ParallelConfig,
    origins: Mapping[str, str],
    model: ModelSpec,
    rank: RankSpec,
    source: Selection,
) -> tuple[str, ExpertBalanceSpec | None]:
    """Return the expert placement, and how experts move (None: not at all).

    The placement is a "module:function", or "" if each rank has a part of every expert or nothing
    is divided. `source` is the load format. Raises: ConfigError if experts cannot be divided
    """
    if parallel.enable_eplb and not parallel.enable_expert_parallel:
        raise ConfigError(
            "only whole experts move between ranks.",
            where=MOVING,
            fix=f"add {FLAG}, or leave the flag out.",
        )
    if parallel.enable_eplb and cache.cpu_offload_gb:
        raise ConfigError(
            "experts that are copied from host memory in each step do not move between ranks.",
            where=MOVING,
            fix="leave out this flag, or --cpu-offload-gb.",
        )
    num_experts = experts_of(model.hf_config)[0]
    _tell_idle(parallel, origins, num_experts, rank)
    if not parallel.enable_expert_parallel or not num_experts or rank.expert_size == 1:
        return "", None
    balance = _balance(parallel) if parallel.enable_eplb else None
    _check_division(num_experts, balance.num_redundant if balance else 0, rank.expert_size)
    if "divided" in registry.admin.load_selection(source).capabilities:
        raise ConfigError(
            f"the files of load format {source.name} hold a part of every expert for each rank.",
            where=FLAG,
            fix="leave the flag out, or load the checkpoint that they were made from.",
        )
    return registry.admin.value_of("expert_placement", parallel.expert_placement_strategy), balance


def _tell_idle(
    parallel: ParallelConfig, origins: Mapping[str, str], num_experts: int, rank: RankSpec
) -> None:
    """Log flags that have no effect, and why."""
    if parallel.enable_expert_parallel:
        if not num_experts:
            log.warning("%s has no effect: the model has no experts", FLAG)
        elif rank.expert_size == 1:
            log.warning("%s has no effect: one rank holds all experts", FLAG)
    elif "expert_placement_strategy" in origins:
        log.warning("%s has no effect: it needs %s", STRATEGY, FLAG)
    if parallel.eplb_config and not parallel.enable_eplb:
        log.warning("%s has no effect: it needs %s", SETTINGS, MOVING)


def _check_division(num_experts: int, num_redundant: int, size: int) -> None:
    """Raise ConfigError unless all ranks get the same number of experts, copies included."""
    missing = -(num_experts + num_redundant) % size
    if not missing:
        return
    if num_redundant:
        raise ConfigError(
            f"{num_experts} experts and {num_redundant} copies cannot be divided evenly over "
            f"{size} ranks.",
            where=f"{SETTINGS}.num_redundant_experts",
            fix=f"use {num_redundant + missing}.",
        )
    sizes = [str(n) for n in range(1, num_experts + 1) if num_experts % n == 0]
    raise ConfigError(
        f"{num_experts} experts cannot be divided evenly over {size} ranks.",
        where=FLAG,
        fix=f"use one of {', '.join(sizes)} ranks, or leave the flag out.",
    )


def _balance(parallel: ParallelConfig) -> ExpertBalanceSpec:
    """Return --eplb-config as a spec. Raises: ConfigError for invalid keys and values"""
    fields = {}
    for word, value in parallel.eplb_config.items():
        key, where = word.replace("-", "_"), f"{SETTINGS}.{word}"
        if key == "log_balancedness":
            fields["is_logged"] = convert(value, bool, where)
            continue
        if key not in _KEYS:
            known = ", ".join([*_KEYS, "log_balancedness"])
            raise ConfigError(f'"{word}" is not a setting.', where=where, fix=f"use {known}.")
        name, minimum = _KEYS[key]
        fields[name] = convert(value, int, where)
        if fields[name] < minimum:
            fix = f"give at least {minimum}."
            raise ConfigError(f"{fields[name]} is out of range.", where=where, fix=fix)
    return ExpertBalanceSpec(**fields)

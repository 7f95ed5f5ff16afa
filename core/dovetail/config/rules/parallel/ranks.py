"""Ranks: their number, whether the model divides over them, their executor and communicator."""

from __future__ import annotations

import logging

import msgspec

from dovetail import registry
from dovetail.config.rules.machine.cores import BAR, UNBOUND, chosen_cores, cores_of_ranks, word_of
from dovetail.config.rules.machine.cores import FLAG as CORES
from dovetail.config.rules.machine.platform import usable_cores
from dovetail.config.rules.parallel.context_parallel import context_size
from dovetail.config.rules.parallel.placement import placed
from dovetail.config.rules.parallel.stages import FLAG as PIPELINE
from dovetail.config.rules.parallel.stages import largest_stage
from dovetail.config.rules.selections import select
from dovetail.config.sections.device import DeviceConfig
from dovetail.config.sections.parallel import ParallelConfig
from dovetail.config.sections.plugin import PluginConfig
from dovetail.errors import ConfigError
from dovetail.interfaces.communicator import CommunicatorQuery
from dovetail.interfaces.data.spec import ModelSpec, RankSpec, Selection
from dovetail.interfaces.platform import Platform

log = logging.getLogger(__name__)

TENSOR = "--tensor-parallel-size"
SEVERAL_RANKS, DIVISIBLE = "several_ranks", "tensor_parallel"
"""Capabilities of an executor and of a model."""


def rank_spec(parallel: ParallelConfig) -> RankSpec:
    """Return the first rank, with the number of ranks; under a launcher this process's own rank."""
    tensor_size, num_stages = parallel.tensor_parallel_size, parallel.pipeline_parallel_size
    size = tensor_size * num_stages
    rank = RankSpec(
        world_size=size,
        local_size=size,
        tensor_size=tensor_size,
        num_stages=num_stages,
        context_size=context_size(parallel),
    )
    return placed(parallel, rank)


def check_division(model: ModelSpec, plugin: Selection, rank: RankSpec) -> None:
    """Raise ConfigError unless the model's heads can be divided over the ranks."""
    size = rank.tensor_size
    if size == 1:
        return
    if DIVISIBLE not in registry.admin.load_selection(plugin).capabilities:
        raise ConfigError(
            f"the model plugin {plugin.name} cannot be divided over ranks.",
            where=TENSOR,
            fix="use 1, or an architecture whose plugin claims tensor_parallel.",
        )
    if model.cache is not None and not model.cache.num_attention_layers:
        return  # the layers check their own division
    if model.num_heads % size:
        raise ConfigError(
            f"{model.num_heads} attention heads cannot be divided evenly over {size} ranks.",
            where=TENSOR,
            fix=f"use one of {_listed(_head_divisors(model))}.",
        )
    for kv_heads in _kv_heads(model):
        if kv_heads % size and size % kv_heads:
            raise ConfigError(
                f"{kv_heads} KV heads can neither be divided over {size} ranks nor repeated.",
                where=TENSOR,
                fix=f"use one of {_listed(_head_divisors(model))}.",
            )


def _kv_heads(model: ModelSpec) -> list[int]:
    """Return the numbers of KV heads in the layers."""
    second = None if model.cache is None else model.cache.second_heads
    return [model.num_kv_heads, *(() if second is None else second[:1])]


def _head_divisors(model: ModelSpec) -> list[int]:
    """Return the numbers of ranks over which the heads can be divided."""
    sizes = [size for size in range(1, model.num_heads + 1) if model.num_heads % size == 0]
    return [s for s in sizes if all(kv % s == 0 or s % kv == 0 for kv in _kv_heads(model))]


def _listed(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers))


def cached_model(model: ModelSpec, rank: RankSpec) -> ModelSpec:
    """Return the model as one rank's KV cache sees it. A KV head may be on several ranks."""
    heads, staged = max(1, model.num_kv_heads // rank.tensor_size), largest_stage(model, rank)
    cache = staged.cache
    if cache is not None and cache.second_heads is not None:
        count, size = cache.second_heads
        own = (max(1, count // rank.tensor_size), size)
        staged = msgspec.structs.replace(
            staged, cache=msgspec.structs.replace(cache, second_heads=own)
        )
    return msgspec.structs.replace(staged, num_kv_heads=heads)


def rank_processors(
    device: DeviceConfig, rank: RankSpec, *, on_cores: bool
) -> tuple[tuple[int, ...], ...]:
    """Return the processors of each rank; empty for one rank, and if they are not bound.

    `on_cores`: the ranks compute on processors. Raises: ConfigError for more ranks than cores
    """
    text = device.cpu_cores
    if not on_cores or (rank.local_size == 1 and BAR not in (text or "")):
        return ()
    found, usable = cores_of_ranks(text, rank.local_size), usable_cores(chosen_cores(text))
    if not found and word_of(text) != UNBOUND and usable < rank.local_size:
        both = f" ({TENSOR} times {PIPELINE})"
        product = both if rank.tensor_size > 1 and rank.num_stages > 1 else ""
        raise ConfigError(
            f"{rank.local_size} ranks need a core each, and this process may use {usable}.",
            where=PIPELINE if rank.tensor_size == 1 else TENSOR,
            fix=f"use at most {usable}{product}, or {CORES} nobind.",
        )
    return found


def select_communicator(
    parallel: ParallelConfig, plugins: PluginConfig, platform: Platform, rank: RankSpec
) -> Selection | None:
    """Return how the ranks exchange tensors; None for a single rank. Raises: PluginError"""
    if rank.world_size * rank.data_size == 1:
        return None
    query = CommunicatorQuery(
        device=platform.torch_type or platform.device_type,
        is_one_machine=rank.local_size == rank.world_size,
        wants_vendor=parallel.disable_custom_all_reduce,
    )
    options = plugins.options_of("communicator")
    name = parallel.communicator
    return select("communicator", name, query=query, options=options, where="--communicator")


def check_executor(executor: Selection, rank: RankSpec) -> None:
    """Raise ConfigError for an executor that cannot run all ranks."""
    if rank.world_size == 1:
        return
    if SEVERAL_RANKS not in registry.admin.load_selection(executor).capabilities:
        raise ConfigError(
            f"the executor {executor.name} runs one rank, not {rank.world_size}.",
            where="--distributed-executor-backend",
            fix="use mp, or leave the flag out.",
        )

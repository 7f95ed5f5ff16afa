"""Several engines of one model: the numbers of those that run here, and what each gets of this
machine.

An engine's number is its data-parallel rank. Engines of a model that is whole in each of them never
talk to each other, so those of other machines need not be known here; experts are divided over the
engines of this machine (`rules.experts`).
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from dovetail.config.config import Config
from dovetail.config.rules.cores import chosen_cores, divided
from dovetail.config.rules.placement import launched
from dovetail.config.rules.platform import default_threads, usable_cores, usable_processors
from dovetail.config.sections.parallel import ParallelConfig
from dovetail.errors import ConfigError
from dovetail.interfaces.platform import Platform
from dovetail.interfaces.spec import EngineShare
from dovetail.unsupported import remedy, sentence

log = logging.getLogger(__name__)

SIZE = "--data-parallel-size"
LOCAL = "--data-parallel-size-local"
RANK = "--data-parallel-rank"
START = "--data-parallel-start-rank"
HYBRID = "--data-parallel-hybrid-lb"
HOST_CORES = "host_cores"
"""The capability of a platform that computes on this machine's processors."""


def engine_numbers(config: Config) -> range:
    """Return the numbers of the engines that this server runs. Raises: ConfigError

    All of them; with a rank that one alone, behind a balancer of the user's; with the hybrid
    balancing those from the start rank on, as many as the local size says.
    """
    parallel = config.parallel
    if parallel.data_parallel_rank is not None:
        return _one_rank(parallel, parallel.data_parallel_rank)
    if parallel.data_parallel_hybrid_lb:
        return _machine_of_several(parallel)
    return _all_here(parallel)


def check_engines(config: Config) -> None:
    """Raise ConfigError for numbers of engines that do not fit together. Logs flags of no use."""
    numbers = engine_numbers(config)
    if len(numbers) > 1 and config.frontend.disable_frontend_multiprocessing:
        raise ConfigError(
            f"each of {len(numbers)} engines needs its own process.",
            where="--disable-frontend-multiprocessing",
            fix=f"leave it out, or use {SIZE} 1.",
        )
    if len(numbers) > 1 and launched(config) is not None:
        raise ConfigError(
            f"a launcher starts the ranks of one engine, not of {len(numbers)}.",
            where="--distributed-executor-backend",
            fix=f"use mp or ray, or one launch for each engine with {RANK}.",
        )
    for flag in ("data_parallel_address", "data_parallel_rpc_port"):
        if config.value(flag) is not None:
            spelling = "--" + flag.replace("_", "-")
            log.info("%s has no effect: the engines have nothing to tell each other.", spelling)


def _one_rank(parallel: ParallelConfig, rank: int) -> range:
    size = parallel.data_parallel_size
    if rank >= size:
        raise ConfigError(
            f"there is no rank {rank} among {size}.",
            where=RANK,
            fix=f"use 0 to {size - 1}, or raise {SIZE}.",
        )
    if parallel.data_parallel_size_local not in (None, 1):
        raise ConfigError(
            f"with {RANK} a server runs one engine, not {parallel.data_parallel_size_local}.",
            where=LOCAL,
            fix=f"use 1, or {HYBRID} with {START} for several.",
        )
    if parallel.data_parallel_hybrid_lb:
        raise ConfigError(
            f"it balances over several engines, and {RANK} means one.",
            where=HYBRID,
            fix="leave one of the two out.",
        )
    return range(rank, rank + 1)


def _machine_of_several(parallel: ParallelConfig) -> range:
    size, first = parallel.data_parallel_size, parallel.data_parallel_start_rank or 0
    local = parallel.data_parallel_size_local
    count = size - first if local is None else local
    if count < 1 or first + count > size:
        raise ConfigError(
            f"{count} engines from rank {first} on are not among {size}.",
            where=LOCAL if local is not None else START,
            fix=f"use at most {max(0, size - first)} engines here, or raise {SIZE}.",
        )
    return range(first, first + count)


def _all_here(parallel: ParallelConfig) -> range:
    size, local = parallel.data_parallel_size, parallel.data_parallel_size_local
    if parallel.data_parallel_start_rank:
        raise ConfigError(
            "it says where this machine's engines begin, which is of use only with "
            f"{HYBRID}: otherwise all engines are here.",
            where=START,
            fix=f"leave it out, or add {HYBRID}.",
        )
    if local is not None and local > size:
        raise ConfigError(
            f"{local} engines are more than {SIZE} {size}.", where=LOCAL, fix=f"use {size}."
        )
    if local is not None and local < size:
        feature = "remote_engines"
        raise ConfigError(
            sentence(feature), where=LOCAL, fix=remedy(feature, f"use {size}, or leave it out")
        )
    return range(size)


def engine_shares(config: Config, platform: Platform, num_ranks: int) -> tuple[EngineShare, ...]:
    """Return what each of several engines of so many ranks gets; none for one engine, which has
    everything.

    Raises: ConfigError when there are more ranks than cores or devices.
    """
    numbers = engine_numbers(config)
    count = len(numbers)
    if count == 1:
        return ()
    processors = chosen_cores(config.device.cpu_cores)
    parts = [processors] * count
    of_ranks: list[tuple[tuple[int, ...], ...]] = [()] * count
    threads = config.device.num_threads or 0
    if HOST_CORES in platform.capabilities:
        usable = _enough_cores(config, processors, count, num_ranks)
        parts = divided(processors or usable_processors(), count)
        if num_ranks > 1:
            of_ranks = [tuple(divided(part, num_ranks)) for part in parts]
        each = of_ranks[0][0] if of_ranks[0] else parts[0]
        threads = threads or min(default_threads(each), max(1, usable // (count * num_ranks)))
    return tuple(
        EngineShare(
            engine=number,
            processors=parts[place],
            rank_processors=of_ranks[place],
            num_threads=threads,
            variables=dict(platform.engine_variables(place, count, num_ranks)),
        )
        for place, number in enumerate(numbers)
    )


def _enough_cores(config: Config, processors: Collection[int], count: int, num_ranks: int) -> int:
    """Return how many cores may be used. Raises: ConfigError unless each rank has one."""
    usable = usable_cores(processors)
    if count * num_ranks > usable:
        needs = "a core each" if num_ranks == 1 else f"{num_ranks} cores each, one for each rank"
        most = usable // num_ranks
        raise ConfigError(
            f"{count} engines need {needs}, and this process may use {usable}.",
            where=SIZE if config.parallel.data_parallel_size_local is None else LOCAL,
            fix=f"use at most {most}." if most else "use fewer ranks.",
        )
    return usable

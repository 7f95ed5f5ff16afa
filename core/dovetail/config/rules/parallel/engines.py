"""Data parallelism: the numbers of the engines on this machine, and each one's share of it.

An engine's number is its data-parallel rank. Engines that each have a whole model never communicate
with each other; engines of other machines may join this server (`joining`). Experts are divided
over the engines of one machine (`rules.experts`).
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from dovetail.config.rules.machine.cores import (
    BAR,
    UNBOUND,
    chosen_cores,
    cores_of_ranks,
    divided,
    word_of,
)
from dovetail.config.rules.machine.cores import FLAG as CORES
from dovetail.config.rules.machine.platform import default_threads, usable_cores, usable_processors
from dovetail.config.rules.parallel.joining import BACKEND, HEADLESS, check_joining, starter_of
from dovetail.config.rules.parallel.placement import launched, places_ranks
from dovetail.config.rules.selections import select_router
from dovetail.config.sections.device import DeviceConfig
from dovetail.config.sections.frontend import FrontendConfig
from dovetail.config.sections.parallel import ParallelConfig
from dovetail.config.sections.plugin import PluginConfig
from dovetail.errors import ConfigError
from dovetail.interfaces.data.profile import of_engine
from dovetail.interfaces.data.spec import EngineShare, EngineSpec
from dovetail.interfaces.platform import Platform

SIZE = "--data-parallel-size"
LOCAL = "--data-parallel-size-local"
RANK = "--data-parallel-rank"
START = "--data-parallel-start-rank"
HYBRID = "--data-parallel-hybrid-lb"
HOST_CORES = "host_cores"
"""Capability of a platform that computes on this machine's processors."""


def engine_numbers(parallel: ParallelConfig) -> range:
    """Return the numbers of the engines that run on this machine. Raises: ConfigError

    By default all, or the first ones up to the local size (without it none, if a starter starts
    them). With a rank only that one, for the user's own load balancer. With hybrid balancing or
    headless, those from the start rank on.
    """
    if parallel.data_parallel_rank is not None:
        return _one_rank(parallel, parallel.data_parallel_rank)
    if parallel.data_parallel_hybrid_lb or parallel.headless:
        return _machine_of_several(parallel)
    return _first_ones(parallel)


def engines_elsewhere(parallel: ParallelConfig) -> range:
    """Return the numbers of this server's engines that run on other machines."""
    is_apart = parallel.data_parallel_rank is not None or parallel.data_parallel_hybrid_lb
    if is_apart or parallel.headless:
        return range(0)
    return range(len(_first_ones(parallel)), parallel.data_parallel_size)


def with_engines(
    spec: EngineSpec,
    parallel: ParallelConfig,
    device: DeviceConfig,
    plugins: PluginConfig,
    platform: Platform,
) -> EngineSpec:
    """Return the spec with the engines of its server, or of the server that a headless process
    joins. Raises: ConfigError"""
    numbers, others = engine_numbers(parallel), engines_elsewhere(parallel)
    count = len(numbers) + len(others)
    if parallel.headless:
        count = parallel.data_parallel_size
    first = numbers[0] if numbers else 0
    return msgspec.structs.replace(
        spec,
        run=msgspec.structs.replace(spec.run, profile=of_engine(spec.run.profile, first)),
        engine=first,
        num_engines=count,
        shares=engine_shares(parallel, device, platform, spec.run.rank.local_size),
        elsewhere=tuple(others),
        router=select_router(parallel, plugins) if count > 1 else None,
    )


def check_engines(parallel: ParallelConfig, frontend: FrontendConfig) -> None:
    """Raise ConfigError for engine numbers that do not fit together. Logs flags without effect."""
    numbers, others = engine_numbers(parallel), engines_elsewhere(parallel)
    count = len(numbers) + len(others)
    if (count > 1 or others) and frontend.disable_frontend_multiprocessing:
        raise ConfigError(
            f"each of {count} engines needs its own process.",
            where="--disable-frontend-multiprocessing",
            fix=f"leave it out, or use {SIZE} 1.",
        )
    if (count > 1 or others or parallel.headless) and launched(parallel) is not None:
        raise ConfigError(
            f"a launcher starts the ranks of one engine, not of {count}.",
            where="--distributed-executor-backend",
            fix=f"use mp or ray, or one launch for each engine with {RANK}.",
        )
    _check_starter(parallel)
    check_joining(parallel, frontend, joins=bool(others))


def _check_starter(parallel: ParallelConfig) -> None:
    """Raise ConfigError for flags that do not fit with an engine starter."""
    if starter_of(parallel) is None:
        return
    backend = f"{BACKEND} {parallel.data_parallel_backend}"
    for flag, is_meant in {
        RANK: parallel.data_parallel_rank is not None,
        HYBRID: parallel.data_parallel_hybrid_lb,
    }.items():
        if is_meant:
            raise ConfigError(
                f"{backend} starts all engines of one server, and with {flag} there are others.",
                where=BACKEND,
                fix="leave one of the two out.",
            )
    if places_ranks(parallel):
        raise ConfigError(
            f"the ranks of an engine of {backend} run on the engine's machine, and this executor "
            "may use others.",
            where="--distributed-executor-backend",
            fix=f"leave it out, or leave {BACKEND} out.",
        )


def _one_rank(parallel: ParallelConfig, rank: int) -> range:
    size = parallel.data_parallel_size
    if rank >= size:
        raise _no_such_rank(RANK, rank, size)
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


def _no_such_rank(flag: str, rank: int, size: int) -> ConfigError:
    return ConfigError(
        f"there is no rank {rank} among {size}.",
        where=flag,
        fix=f"use 0 to {size - 1}, or raise {SIZE}.",
    )


def _machine_of_several(parallel: ParallelConfig) -> range:
    size, first = parallel.data_parallel_size, parallel.data_parallel_start_rank or 0
    local = parallel.data_parallel_size_local
    if first >= size:
        raise _no_such_rank(START, first, size)
    count = size - first if local is None else local
    if count < 1 or first + count > size:
        raise ConfigError(
            f"{count} engines from rank {first} on are not among {size}.",
            where=LOCAL if local is not None else START,
            fix=f"use at most {size - first} engines here, or raise {SIZE}.",
        )
    return range(first, first + count)


def _first_ones(parallel: ParallelConfig) -> range:
    size, local = parallel.data_parallel_size, parallel.data_parallel_size_local
    if parallel.data_parallel_start_rank:
        raise ConfigError(
            "it says where this machine's engines begin, which is of use only with "
            f"{HYBRID} and {HEADLESS}: otherwise they begin at 0.",
            where=START,
            fix=f"leave it out, or add {HYBRID} or {HEADLESS}.",
        )
    if local is not None and local > size:
        raise ConfigError(
            f"{local} engines are more than {SIZE} {size}.", where=LOCAL, fix=f"use {size}."
        )
    if local is None:
        return range(size if starter_of(parallel) is None else 0)
    return range(local)


def engine_shares(
    parallel: ParallelConfig, device: DeviceConfig, platform: Platform, num_ranks: int
) -> tuple[EngineShare, ...]:
    """Return each engine's share of this machine; empty for one engine, which has everything.

    Raises: ConfigError if there are more ranks than cores or devices.
    """
    numbers = engine_numbers(parallel)
    count = len(numbers)
    if count <= 1:
        return ()
    parts = [chosen_cores(device.cpu_cores)] * count
    of_ranks: list[tuple[tuple[int, ...], ...]] = [()] * count
    threads = device.num_threads or 0
    if HOST_CORES in platform.capabilities:
        usable = _enough_cores(parallel, device, parts[0], count, num_ranks)
        parts, of_ranks = _divided_cores(device, count, num_ranks)
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


def _divided_cores(
    device: DeviceConfig, count: int, num_ranks: int
) -> tuple[list[tuple[int, ...]], list[tuple[tuple[int, ...], ...]]]:
    """Return the processors of each engine, and of each of its ranks if it has several. They are as
    listed, else whole cores divided evenly; empty if they are not bound."""
    text = device.cpu_cores
    if word_of(text) == UNBOUND:
        return [()] * count, [()] * count
    if BAR in (text or ""):
        lists = cores_of_ranks(text, count * num_ranks)
        groups = [lists[i * num_ranks : (i + 1) * num_ranks] for i in range(count)]
        parts = [tuple(sorted(sum(group, ()))) for group in groups]
    else:
        parts = divided(chosen_cores(text) or usable_processors(), count)
        groups = [tuple(divided(part, num_ranks)) for part in parts]
    return parts, groups if num_ranks > 1 else [()] * count


def _enough_cores(
    parallel: ParallelConfig,
    device: DeviceConfig,
    processors: Collection[int],
    count: int,
    num_ranks: int,
) -> int:
    """Return the number of usable cores. Raises: ConfigError if ranks are bound and there are fewer
    cores than ranks."""
    usable = usable_cores(processors)
    if word_of(device.cpu_cores) != UNBOUND and count * num_ranks > usable:
        needs = "a core each" if num_ranks == 1 else f"{num_ranks} cores each, one for each rank"
        cores_per_rank = usable // num_ranks
        raise ConfigError(
            f"{count} engines need {needs}, and this process may use {usable}.",
            where=SIZE if parallel.data_parallel_size_local is None else LOCAL,
            fix=f"use at most {cores_per_rank}, or {CORES} {UNBOUND}."
            if cores_per_rank
            else "use fewer ranks.",
        )
    return usable

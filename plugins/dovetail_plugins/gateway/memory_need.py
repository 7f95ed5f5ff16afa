"""What is known of a model before it is loaded: above all the memory for weights and KV cache.

The estimate is that of `dovetail inspect`, from the files' headers only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from dovetail.config.resolve import resolve
from dovetail.config.rules.machine.device import select_platform
from dovetail.config.rules.machine.host_memory import HOST_MEMORY
from dovetail.interfaces.data.spec import EngineSpec
from dovetail.interfaces.platform import Platform
from dovetail_plugins.apis._capabilities import Capabilities
from dovetail_plugins.created_models.abilities import known_capabilities
from dovetail_plugins.gateway.entries import ModelEntry
from dovetail_plugins.inspect.collect import memory_taken


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryNeed:
    """`num_bytes` is the memory of the loaded model, `context_tokens` the longest context.

    `is_host`: it is main memory, which an engine takes page by page as it uses it. `capabilities`
    are what its files show of it, None if they do not.
    """

    num_bytes: int
    context_tokens: int
    is_host: bool
    free_bytes: Callable[[], int | None]
    capabilities: Capabilities | None = None


def need_of(entry: ModelEntry) -> MemoryNeed:
    """Return the need of a model. Raises: ConfigError for a model that would not start"""
    config = entry.config
    spec = resolve(config)
    platform = select_platform(config.device, config.plugin)[1]
    taken = memory_taken(config, spec)
    weights = taken.weights_bytes + taken.tables_bytes if taken else 0
    caches = spec.run.model.is_causal
    share = _share_bytes(spec, platform)
    is_host = HOST_MEMORY in platform.capabilities
    return MemoryNeed(
        num_bytes=max(weights + (spec.cache.memory_bytes or 0), share) if caches else weights,
        context_tokens=spec.run.max_model_tokens,
        is_host=is_host,
        free_bytes=platform.free_bytes,
        capabilities=known_capabilities(config, spec),
    )


def _share_bytes(spec: EngineSpec, platform: Platform) -> int:
    """Return the memory of an engine that fills its share of the device with KV cache."""
    if spec.cache.memory_bytes is not None or spec.cache.num_blocks is not None:
        return 0
    return int(spec.cache.memory_share * (platform.free_bytes() or 0))


async def free_beside(own: MemoryNeed, others: list[tuple[MemoryNeed, int]]) -> int | None:
    """Return the free bytes for one model next to loaded ones; None if unknown.

    `others` are the loaded models' needs, each with the bytes taken so far. What they have yet to
    take is not free.
    """
    free = await asyncio.to_thread(own.free_bytes)
    if free is None:
        return None
    return free - sum(max(0, need.num_bytes - taken) for need, taken in others)

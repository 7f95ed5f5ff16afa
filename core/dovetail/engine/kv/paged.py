"""Paged: blocks of equal size for every layer, allocated one by one, shared by equal prefixes."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.engine.kv.kv_cache import KVCacheManager
from dovetail.engine.kv.kv_groups import plan_layout
from dovetail.interfaces.data.spec import CacheSpec
from dovetail.interfaces.data.step import CachedLayer, KVLayout
from dovetail.interfaces.kv_policy import KVAccounting, KVPolicy, KVRoom
from dovetail.interfaces.plugin import Info


class Paged(KVPolicy):
    """The block accounting of `dovetail.engine.kv`."""

    info = Info(
        summary="blocks handed out one by one and shared by equal prefixes",
        source="https://arxiv.org/abs/2309.06180",
    )

    def plan(self, layers: Sequence[CachedLayer], room: KVRoom) -> KVLayout:
        """Return the cache layout for the available memory. Raises: ConfigError"""
        return plan_layout(
            layers,
            block_tokens=room.block_tokens,
            num_blocks=room.num_blocks,
            memory_bytes=room.memory_bytes,
            host_bytes=room.host_bytes,
        )

    def accounting(self, layout: KVLayout, spec: CacheSpec, hash_key: bytes) -> KVAccounting:
        """Return a KVCacheManager."""
        return KVCacheManager(layout, spec, hash_key)

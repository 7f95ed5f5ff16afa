"""Builds what an engine runs on at start-up: executor, KV cache layout and accounting."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from typing import Any

import msgspec

from dovetail import registry
from dovetail.engine.kv import kv_groups
from dovetail.errors import ConfigError
from dovetail.interfaces.data.kv_pieces import state_groups
from dovetail.interfaces.data.spec import CacheSpec, EngineSpec
from dovetail.interfaces.data.step import CachedLayer, EntryLayer, KVLayer, KVLayout, LatentLayer
from dovetail.interfaces.executor import Executor
from dovetail.interfaces.kv_policy import KVAccounting, KVPolicy, KVRoom
from dovetail.registry.blame import blaming


def build_executor(spec: EngineSpec) -> Executor:
    """Return the executor with its ranks started."""
    executor_class = registry.admin.load_selection(spec.executor)
    options = registry.admin.build_options(spec.executor)
    with blaming("starting the workers"):
        executor: Executor = executor_class(options, spec.run, spec.worker)
    return executor


def plan_layout(spec: EngineSpec, executor: Executor, policy: KVPolicy) -> KVLayout:
    """Return the KV cache's layout. Raises: ConfigError when the longest request does not fit."""
    cache, schedule = spec.cache, spec.schedule
    memory_bytes = cache.memory_bytes
    if cache.num_blocks is None and memory_bytes is None:
        memory_bytes = executor.free_bytes()
    layers = executor.kv_layers()
    if cache.keeps_windows:
        layers = [
            msgspec.structs.replace(layer, window_tokens=None)
            if isinstance(layer, KVLayer | LatentLayer | EntryLayer)
            else layer
            for layer in layers
        ]
    room = KVRoom(
        block_tokens=cache.block_tokens,
        num_blocks=cache.num_blocks,
        memory_bytes=memory_bytes,
        host_bytes=cache.host_bytes,
    )
    layout = policy.plan(layers, room)
    if spec.drafting is not None:
        drafts = spec.drafting.max_tokens * spec.drafting.rows_of(schedule.max_rows)
        is_fixed = cache.num_blocks is not None
        layout = kv_groups.with_draft_blocks(layout, layers, drafts, is_fixed=is_fixed)
    step_tokens = schedule.max_step_tokens * schedule.plans_in_flight
    kv_groups.verify_fits(layout, schedule.max_model_tokens, step_tokens)
    return layout


def hash_units(spec: EngineSpec, layout: KVLayout) -> CacheSpec:
    """Return the cache rules, with the unit size of prefix hashes. Raises: ConfigError"""
    transfer = spec.run.transfer
    unit = 0 if transfer is None else transfer.unit_tokens
    if unit and layout.block_tokens % unit:
        raise ConfigError(
            f"a block of {layout.block_tokens} tokens is not made of units of {unit}.",
            where="--kv-transfer-config.kv_unit_tokens",
            fix="use a divisor of both engines' block sizes.",
        )
    return msgspec.structs.replace(spec.cache, hash_tokens=unit)


def hash_key(spec: EngineSpec, layout: KVLayout, layers: Sequence[CachedLayer]) -> bytes:
    """Return the prefix-hash key: random, or with an external KV store a digest of everything but
    the tokens that block contents depend on."""
    if spec.run.transfer is None:
        return os.urandom(32)
    unit = spec.run.transfer.unit_tokens
    content: Any = (layout.groups, layout.block_tokens, layout.block_bytes)
    if unit:
        # State-space states are sharded over ranks in a model-specific way.
        ranks = spec.run.rank.tensor_size if state_groups(layout, layers) else 0
        content = (layout.groups, unit, ranks)
    identity = spec.run.transfer.identity.encode()
    return hashlib.sha256(identity + msgspec.json.encode(content)).digest()


def build_cache(
    spec: EngineSpec, executor: Executor, layout: KVLayout, policy: KVPolicy
) -> KVAccounting:
    """Return the KV block accounting. Raises: ConfigError"""
    hash_seed = hash_key(spec, layout, executor.kv_layers())
    return policy.accounting(layout, hash_units(spec, layout), hash_seed)

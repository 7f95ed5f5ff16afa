"""Memory of the weights, the tables and the KV cache, and what fits next to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dovetail.config.checkpoint.context_length import checkpoint_tokens
from dovetail.config.checkpoint.model_facts import facts_of, has_rotary
from dovetail.config.checkpoint.rope import FULL, rope_of
from dovetail.interfaces.data.spec import ModelSpec
from dovetail_plugins.inspect import capacity
from dovetail_plugins.inspect.facts import Group, Memory
from dovetail_plugins.inspect.from_disk import from_disk
from dovetail_plugins.inspect.how import How

if TYPE_CHECKING:
    from dovetail_plugins.inspect.collect import EngineParts

BLOCK_TOKENS, STEP_TOKENS = 16, 256
"""Used if no engine is resolved: the values of a CPU engine."""


def memory_of(groups: Sequence[Group], how: How, parts: EngineParts) -> Memory:
    """Return the memory that a model takes on its device, and what fits next to it."""
    spec, model, kv_dtype = parts.spec, parts.model, parts.kv_dtype
    served = spec.schedule.max_model_tokens if spec else checkpoint_tokens(model)
    step = spec.schedule.max_step_tokens if spec else STEP_TOKENS
    block = spec.cache.block_tokens if spec else BLOCK_TOKENS
    weights = sum(group.kept_bytes for group in groups)
    tables = tables_bytes(model, served) if how.is_own else 0
    free = parts.platform.free_bytes()
    left = None if free is None else free - weights - tables
    caches = model.is_causal
    disk = from_disk(groups, how, spec, free) if left is not None and left < 0 else None
    if disk is not None:
        left = None  # the cache is reserved first, and weights take the rest
    return Memory(
        device=parts.device,
        weights_bytes=weights,
        tables_bytes=tables,
        is_exact=all(group.is_exact for group in groups),
        kv_dtype=kv_dtype,
        kv_bytes_per_token=capacity.per_token(model, kv_dtype) if caches else 0,
        state_bytes_per_request=capacity.per_row(model, kv_dtype),
        free_bytes=free,
        longest_tokens=None if left is None else _longest(model, kv_dtype, left, block, step),
        fits=() if left is None or not caches else capacity.fits(model, kv_dtype, left, step),
        cache_bytes=spec.cache.memory_bytes if spec and caches else None,
        served_tokens=served if spec else None,
        most_requests=spec.schedule.max_rows if spec else None,
        from_disk=disk,
    )


def _longest(model: ModelSpec, kv_dtype: str, left: int, block: int, step: int) -> int:
    """Return the longest context that fits into the remaining memory."""
    if model.is_causal:
        return capacity.longest(model, kv_dtype, left, block, step)
    return checkpoint_tokens(model) if left > 0 else 0


def tables_bytes(model: ModelSpec, served_tokens: int) -> int:
    """Return the bytes of the rotary tables (cosines and sines, float32) for all served
    positions."""
    config: Mapping[str, Any] = model.hf_config
    if not has_rotary(config):
        return 0
    name = "partial_rotary_factor"
    share = rope_of(config, FULL).get(name) or config.get(name) or 1.0
    is_two = facts_of(config).has_two_rotary_tables
    kinds = set(config.get("layer_types") or ()) if is_two else set()
    return max(1, len(kinds)) * served_tokens * int(model.head_size * float(share)) * 4

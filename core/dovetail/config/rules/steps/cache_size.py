"""The size of the KV cache, and whether one request of maximum length fits into it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from dovetail.config.checkpoint.context_length import chunk_tokens, window_tokens
from dovetail.config.checkpoint.dtypes import BYTES
from dovetail.config.sections.model import ModelConfig
from dovetail.config.sections.parallel import ParallelConfig
from dovetail.errors import ConfigError
from dovetail.interfaces.data.cache_facts import CacheFacts
from dovetail.interfaces.data.schedule_spec import ScheduleSpec
from dovetail.interfaces.data.spec import CacheSpec, ModelSpec
from dovetail.interfaces.data.step import KVLayer, tokens_beside_states

log = logging.getLogger(__name__)

CPU_CACHE_BYTES = 4 * 2**30
"""Maximum default cache size of a CPU engine."""

CPU_MEMORY_SHARE = 0.4
STATE_BLOCK_TOKENS = 512
"""Tokens per block if all layers cache only recurrent states. A state is saved after each block, so
that prompts with the same prefix can continue from it."""
LEAST_BLOCK_TOKENS = 16


def kv_bytes(
    model: ModelSpec,
    kv_dtype: str,
    num_tokens: int,
    step_tokens: int,
    context_size: int = 1,
    *,
    draft_bytes: int = 0,
) -> int:
    """Return the bytes of a request of `num_tokens` on each of `context_size` ranks that divide it.
    Windowed layers free what leaves the window. A drafter caches `draft_bytes` per token."""
    per_token = token_bytes(model, kv_dtype)
    if model.cache is not None and not model.cache.sources:
        own = _own_bytes(model, model.cache, per_token, num_tokens, step_tokens, context_size)
        return own + draft_bytes * num_tokens
    window = window_tokens(model.hf_config) or chunk_tokens(model.hf_config)
    keepers = range(model.num_layers) if model.cache is None else model.cache.keepers
    num_windowed = _num_windowed(model.hf_config, keepers) if window else 0
    windowed_tokens = min(num_tokens, (window or num_tokens) + step_tokens)
    whole = num_windowed * windowed_tokens + (len(keepers) - num_windowed) * num_tokens
    return per_token * -(-whole // context_size) + draft_bytes * num_tokens


def token_bytes(model: ModelSpec, kv_dtype: str) -> int:
    """Return the bytes of a token in each layer that caches it; the maximum if heads differ."""
    if model.cache is not None and model.cache.latent_size:
        return (model.cache.latent_size + model.cache.index_size) * BYTES[kv_dtype]
    heads = [(model.num_kv_heads, model.head_size)]
    if model.cache is not None and model.cache.second_heads is not None:
        heads.append(model.cache.second_heads)
    layers = [
        KVLayer(name="", num_kv_heads=count, head_size=size, dtype=kv_dtype)
        for count, size in heads
    ]
    return max(layer.bytes_per_token(BYTES[kv_dtype]) for layer in layers)


def state_bytes(model: ModelSpec) -> int:
    """Return the approximate bytes of a row's state in one recurrent layer, with 32-bit sums."""
    if model.cache is None:
        return 0
    facts = model.cache
    return facts.conv_numbers * BYTES[model.weight_dtype or model.dtype] + facts.state_numbers * 4


def _own_bytes(
    model: ModelSpec,
    facts: CacheFacts,
    per_token: int,
    num_tokens: int,
    step_tokens: int,
    context_size: int,
) -> int:
    """Return the bytes of a request if layers differ: a block contains a state, or the keys and
    values of as many tokens as take the same space."""
    state = state_bytes(model)
    if not facts.num_attention_layers:
        block_tokens = STATE_BLOCK_TOKENS
    else:
        block_tokens = tokens_beside_states(state, per_token, LEAST_BLOCK_TOKENS)
    block_tokens = -(-block_tokens // facts.unit_tokens) * facts.unit_tokens
    blocks = -(-num_tokens // block_tokens)
    windowed = min(num_tokens, facts.windowed_tokens + step_tokens) + 3 * block_tokens
    attended = facts.num_attention_layers * per_token * (num_tokens + block_tokens)
    read = (facts.cross_rows or num_tokens) + block_tokens
    attended += facts.num_cross_layers * per_token * read
    attended += facts.num_windowed_layers * per_token * windowed
    state_blocks = min(blocks, -(-(step_tokens - 1) // block_tokens) + 2)
    block = max(state, block_tokens * per_token) if facts.num_attention_layers else state
    return -(-attended // context_size) + facts.num_state_layers * (state_blocks + 1) * block


def cpu_cache_bytes(available: int, share: float | None, useful: int) -> int:
    """Return the cache bytes of a CPU engine, never more than could be `useful`.

    `share` is the user's setting; without it a modest part of the free memory is used.
    """
    free = f"of {available / 2**30:.1f} GiB free"
    if share is not None:
        chosen, reason = (
            int(available * share),
            f"{share:.0%} {free}, as --gpu-memory-utilization asks",
        )
    else:
        chosen, reason = min(
            (useful, f"all that the most and longest requests can fill, {free}"),
            (CPU_CACHE_BYTES, f"the most that a CPU engine takes by default, {free}"),
            (int(available * CPU_MEMORY_SHARE), f"{CPU_MEMORY_SHARE:.0%} {free}"),
        )
    log.info("KV cache memory auto: %.4g MiB, %s.", chosen / 2**20, reason)
    return chosen


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """The cache as one request sees it: `memory` bytes in blocks, including a reserved one.

    `num_blocks` is set if the user gave blocks instead of bytes. `context_size` ranks divide each
    request's cache. A drafter caches `draft_bytes` per token.
    """

    model: ModelSpec
    kv_dtype: str
    memory: int
    block_tokens: int
    step_tokens: int
    num_blocks: int | None = None
    context_size: int = 1
    draft_bytes: int = 0

    @property
    def size(self) -> str:
        """Return the size as text, in the unit that the user gave."""
        if self.num_blocks is not None:
            return f"{self.num_blocks} blocks of {self.block_tokens} tokens"
        return f"{self.memory / 2**20:.4g} MiB of KV cache"

    @property
    def flag(self) -> str:
        """Return the flag that increases the size."""
        asks_blocks = self.num_blocks is not None
        return "--num-gpu-blocks-override" if asks_blocks else "--kv-cache-memory-bytes"

    def holds(self, num_tokens: int) -> bool:
        """Return whether a request of this length fits."""
        blocks = -(-num_tokens // self.block_tokens) + 1
        tokens = blocks * self.block_tokens
        model, ranks = self.model, self.context_size
        need = kv_bytes(
            model, self.kv_dtype, tokens, self.step_tokens, ranks, draft_bytes=self.draft_bytes
        )
        return need <= self.memory

    def largest(self, wanted: int) -> int:
        """Return the maximum length up to `wanted` that fits; 0 if none does."""
        low, high = 0, wanted
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.holds(middle) else (low, middle - 1)
        return low


def fit_tokens(requested: int | None, wanted: int, room: Room) -> int:
    """Return the context length that fits in the cache, at most `wanted`.

    A length that no flag sets is shortened, with a log line. Raises: ConfigError with the maximum
    that fits, if a length was requested.
    """
    if room.holds(wanted):
        return wanted
    largest = room.largest(wanted)
    if requested is not None or largest < 1:
        shorter = f"use --max-model-len {largest}, or " if largest else ""
        raise ConfigError(
            f"{wanted} tokens do not fit into {room.size}; {largest} do.",
            where="--max-model-len",
            fix=f"{shorter}raise {room.flag}.",
        )
    log.info(
        "max_model_len auto: %d of the checkpoint's %d tokens, which is what fits into %s.",
        largest,
        wanted,
        room.size,
    )
    return largest


def _num_windowed(config: Mapping[str, Any], layers: Sequence[int]) -> int:
    """Return how many of these layers have a window or chunks."""
    kinds = config.get("layer_types")
    if isinstance(kinds, list):
        named = [kinds[i] for i in layers if i < len(kinds)]
        return sum(kind in ("sliding_attention", "chunked_attention") for kind in named)
    pattern = config.get("sliding_window_pattern")
    if isinstance(pattern, int) and pattern > 0:
        return sum((i + 1) % pattern > 0 for i in layers)
    return 0  # unknown: count every layer as full, so that the cache is never too small


def fit_schedule(
    model_config: ModelConfig,
    parallel: ParallelConfig,
    model: ModelSpec,
    schedule: ScheduleSpec,
    cache: CacheSpec,
    kv_dtype: str,
    draft_bytes: int,
) -> ScheduleSpec:
    """Return the schedule with a context length that fits in the cache. Raises: ConfigError."""
    memory, ranks = cache.memory_bytes, parallel.decode_context_parallel_size
    if cache.num_blocks is not None:
        # With windowed layers, only the engine knows how blocks are divided among KV groups.
        is_known = window_tokens(model.hf_config) is None
        size, step_tokens = cache.block_tokens, schedule.max_step_tokens
        one = kv_bytes(model, kv_dtype, size, step_tokens, ranks, draft_bytes=draft_bytes)
        memory = cache.num_blocks * one if is_known else None
    if memory is None:
        return schedule
    room = Room(
        model=model,
        kv_dtype=kv_dtype,
        memory=memory,
        block_tokens=cache.block_tokens,
        step_tokens=schedule.max_step_tokens,
        num_blocks=cache.num_blocks,
        context_size=ranks,
        draft_bytes=draft_bytes,
    )
    length = fit_tokens(model_config.max_model_len, schedule.max_model_tokens, room)
    return msgspec.structs.replace(schedule, max_model_tokens=length)

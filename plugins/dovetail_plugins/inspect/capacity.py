"""What fits next to the weights: the longest context, and the number of concurrent requests.

It uses the same arithmetic as the engine's start (`config.cache_size`), but ignores the activations
of a step.
"""

from __future__ import annotations

from dovetail.config.checkpoint.context_length import checkpoint_tokens
from dovetail.config.rules.steps.cache_size import Room, kv_bytes, state_bytes, token_bytes
from dovetail.interfaces.data.spec import ModelSpec
from dovetail_plugins.inspect.facts import Fit

FIRST_TOKENS = 2048
STEP = 4
"""The factor between the context lengths for which requests are counted."""


def per_token(model: ModelSpec, kv_dtype: str) -> int:
    """Return the cache bytes per token, over all layers."""
    facts = model.cache
    if facts is None:
        return kv_bytes(model, kv_dtype, 1, 1)
    return facts.num_attention_layers * token_bytes(model, kv_dtype)


def per_row(model: ModelSpec, kv_dtype: str) -> int:
    """Return the bytes of a row's states in all layers, and of its last tokens if they are cached
    apart, independent of its length."""
    facts = model.cache
    if facts is None:
        return 0
    last = facts.num_windowed_layers * facts.windowed_tokens
    own = last * token_bytes(model, kv_dtype) if last else 0
    return facts.num_state_layers * state_bytes(model) + own


def longest(model: ModelSpec, kv_dtype: str, room_bytes: int, block: int, step: int) -> int:
    """Return the longest context that fits into `room_bytes`, up to the checkpoint's limit."""
    room = Room(
        model=model,
        kv_dtype=kv_dtype,
        memory=max(0, room_bytes),
        block_tokens=block,
        step_tokens=step,
    )
    return room.largest(checkpoint_tokens(model))


def fits(model: ModelSpec, kv_dtype: str, room_bytes: int, step: int) -> tuple[Fit, ...]:
    """Return how many requests of several lengths fit into `room_bytes`. The checkpoint's limit is
    the last length."""
    last = checkpoint_tokens(model)
    lengths = []
    length = FIRST_TOKENS
    while length < last:
        lengths.append(length)
        length *= STEP
    return tuple(
        Fit(context_tokens=n, requests=max(0, room_bytes) // kv_bytes(model, kv_dtype, n, step))
        for n in [*lengths, last]
    )

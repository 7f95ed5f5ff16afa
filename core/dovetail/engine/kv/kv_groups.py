"""KV groups: which layers share a block table, the memory layout, and prefix hits.

Layers with the same rule (full attention, or one window size; a state is a window of two tokens)
form groups of equal size. Layer i of every group uses tensor i, so a block id names the same memory
in every group, and blocks can move between groups. A block has the size of the largest layer;
smaller layers waste the rest. If states are larger than a block of keys and values, blocks hold
more tokens, to waste less. A separate drafter's layers have their own tensors, with the block ids
of the first group. Cross-attention layers form groups that do not grow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import msgspec

from dovetail.config.checkpoint.dtypes import BYTES
from dovetail.errors import ConfigError
from dovetail.interfaces.data.step import (
    CachedLayer,
    CrossLayer,
    EntryLayer,
    KVGroup,
    KVLayout,
    StateLayer,
    tokens_beside_states,
)

DTYPE_BYTES = BYTES | {"uint8": 1}
MAX_GROUPS = 16


def plan_layout(
    layers: Sequence[CachedLayer],
    *,
    block_tokens: int,
    num_blocks: int | None = None,
    memory_bytes: int | None = None,
    host_bytes: int = 0,
) -> KVLayout:
    """Return the layout of the cache: `num_blocks` blocks, or as many as fit into `memory_bytes`,
    and as many host blocks as fit into `host_bytes`.

    The count includes block 0, the null block, which no request owns. Raises: ConfigError if fewer
    than two blocks fit, or no group caches what a drafter needs.
    """
    own = [layer for layer in layers if not layer.is_draft]
    block_tokens = enough_tokens(own, block_tokens)
    layout = _empty_layout(own, block_tokens)
    drafts = [layer for layer in layers if layer.is_draft]
    if drafts:
        _check_drafts(drafts, layout)
        layout = msgspec.structs.replace(layout, draft=draft_layout(drafts, block_tokens))
    all_bytes = layout.all_bytes
    if num_blocks is None:
        if memory_bytes is None:
            raise ConfigError("neither a number of KV blocks nor a size in bytes was given.")
        # A model without attention caches nothing; two blocks keep the arithmetic valid.
        num_blocks = memory_bytes // all_bytes if all_bytes else 2
    if num_blocks < 2:
        raise ConfigError(
            f"only {num_blocks} KV blocks fit, at least 2 are needed "
            f"(a block of {block_tokens} tokens takes {all_bytes} bytes).",
            where="KV cache",
            fix="raise --gpu-memory-utilization or --kv-cache-memory-bytes.",
        )
    return with_blocks(layout, num_blocks, host_bytes // all_bytes if all_bytes else 0)


def with_blocks(layout: KVLayout, num_blocks: int, num_host_blocks: int = 0) -> KVLayout:
    """Return a layout with this many blocks."""
    draft = None if layout.draft is None else with_blocks(layout.draft, num_blocks, num_host_blocks)
    return msgspec.structs.replace(
        layout, num_blocks=num_blocks, num_host_blocks=num_host_blocks, draft=draft
    )


def with_draft_blocks(
    layout: KVLayout, layers: Sequence[CachedLayer], num_drafts: int, *, is_fixed: bool
) -> KVLayout:
    """Return a layout with blocks for the states after `num_drafts` drafts in a step. They are
    added if the number of blocks `is_fixed`, else taken from it. Raises: ConfigError if too few.
    """
    states = {layer.name for layer in layers if isinstance(layer, StateLayer)}
    count = num_drafts * sum(not states.isdisjoint(group.layers) for group in layout.groups)
    left = layout.num_blocks if is_fixed else layout.num_blocks - count
    if left < 2:
        raise ConfigError(
            f"of {layout.num_blocks} KV blocks {count} would be for the states after drafts.",
            where="--speculative-config",
            fix="lower num_speculative_tokens or disable_by_batch_size there, or --max-num-seqs.",
        )
    layout = with_blocks(layout, left, layout.num_host_blocks)
    return msgspec.structs.replace(layout, num_draft_blocks=count)


def draft_layout(drafts: Sequence[CachedLayer], block_tokens: int) -> KVLayout:
    """Return the layout of a drafter's layers, without blocks: one group, a tensor per layer."""
    return KVLayout(
        groups=(KVGroup(layers=tuple(layer.name for layer in drafts)),),
        num_tensors=len(drafts),
        num_blocks=0,
        block_tokens=block_tokens,
        block_bytes=_block_bytes(drafts, block_tokens),
    )


def _empty_layout(layers: Sequence[CachedLayer], block_tokens: int) -> KVLayout:
    groups = group_layers(layers)
    return KVLayout(
        groups=groups,
        num_tensors=max((len(group.layers) for group in groups), default=0),
        num_blocks=0,
        block_tokens=block_tokens,
        block_bytes=_block_bytes(layers, block_tokens),
    )


def _check_drafts(drafts: Sequence[CachedLayer], layout: KVLayout) -> None:
    """Raise ConfigError unless the first group caches all that the drafter's layers attend to."""
    if not layout.groups:
        raise ConfigError(
            "the model keeps no keys and values, and a drafter that does needs their blocks.",
            where="--speculative-config.method",
            fix="use a drafter without attention, such as ngram.",
        )
    window_tokens = layout.groups[0].window_tokens
    short = [
        d
        for d in drafts
        if d.window_tokens is None or (window_tokens and d.window_tokens > window_tokens)
    ]
    if window_tokens is not None and short:
        raise ConfigError(
            f"all layers of the model forget what is {window_tokens} tokens back, and the "
            f'drafter\'s layer "{short[0].name}" looks further.',
            where="--speculative-config.method",
            fix="set --disable-hybrid-kv-cache-manager, or leave the drafter out.",
        )


def group_layers(layers: Sequence[CachedLayer]) -> tuple[KVGroup, ...]:
    """Return the layers divided into groups: full attention first, then states and windows by size,
    then cross attention."""
    kinds: dict[tuple[int, int], list[str]] = {}
    for layer in layers:
        cross = layer.max_rows if isinstance(layer, CrossLayer) else 0
        kinds.setdefault((cross, layer.window_tokens or 0), []).append(layer.name)
    if not kinds:
        return ()
    size = group_size([len(names) for names in kinds.values()])
    return tuple(
        KVGroup(
            layers=tuple(names[start : start + size]),
            window_tokens=window or None,
            cross_rows=cross,
        )
        for (cross, window), names in sorted(kinds.items())
        for start in range(0, len(names), size)
    )


def group_size(counts: Sequence[int]) -> int:
    """Return the layers per group that waste the least memory on padding of the last groups.

    At least the smallest kind's count; on a tie the larger size, for fewer groups.
    """

    def num_groups(size: int) -> int:
        return sum(-(-count // size) for count in counts)

    sizes = range(min(counts), max(counts) + 1)
    few = [size for size in sizes if num_groups(size) <= MAX_GROUPS] or [max(counts)]
    return min(few, key=lambda size: (num_groups(size) * size, -size))


def enough_tokens(layers: Sequence[CachedLayer], block_tokens: int) -> int:
    """Return the tokens of a block, a multiple of `block_tokens`, and of the tokens of entries. If
    the model has states, that is enough for keys and values to be as large as the largest state."""
    units = (one.unit_tokens for one in layers if isinstance(one, EntryLayer))
    block_tokens = math.lcm(block_tokens, *units)
    largest = max((block_bytes(one, 1) for one in layers if isinstance(one, StateLayer)), default=0)
    tokens = [block_bytes(one, 1) for one in layers if not isinstance(one, StateLayer)]
    if not largest or not tokens:
        return block_tokens
    return tokens_beside_states(largest, max(tokens), block_tokens)


def block_bytes(layer: CachedLayer, block_tokens: int) -> int:
    """Return the bytes of one block in a layer. Raises: ConfigError"""
    if isinstance(layer, StateLayer):
        return layer.num_bytes({part.dtype: _dtype_bytes(part.dtype) for part in layer.parts})
    return layer.block_bytes(block_tokens, _dtype_bytes(layer.dtype))


def _block_bytes(layers: Sequence[CachedLayer], block_tokens: int) -> int:
    """Return the bytes of one block in each tensor: the maximum over all layers."""
    return max((block_bytes(layer, block_tokens) for layer in layers), default=0)


def _dtype_bytes(dtype: str) -> int:
    if dtype not in DTYPE_BYTES:
        raise ConfigError(
            f'"{dtype}" is not a dtype of a KV cache.',
            where="--kv-cache-dtype",
            fix=f"use one of {', '.join(DTYPE_BYTES)}.",
        )
    return DTYPE_BYTES[dtype]


def blocks_for(layout: KVLayout, num_tokens: int, step_tokens: int) -> int:
    """Return the maximum number of blocks of one request of `num_tokens` tokens, over all groups.

    Up to `step_tokens` of its tokens are in uncommitted steps. A windowed group then stores the
    window before them, plus one block that the last commit could not free. Cross attention counts
    with the maximum encoder length.
    """
    size = layout.block_tokens
    full = -(-num_tokens // size)
    total = 0
    for group in layout.groups:
        window = group.window_tokens
        if group.cross_rows:
            total += -(-group.cross_rows // size)
        elif window is None:
            total += full
        else:
            windowed_blocks = -(-(window - 1) // size) + -(-(step_tokens - 1) // size) + 1
            total += min(full, windowed_blocks)
    return total


def max_request_tokens(layout: KVLayout, limit_tokens: int, step_tokens: int) -> int:
    """Return the longest request, up to `limit_tokens`, that fits into the whole cache."""
    low, high = 0, limit_tokens
    while low < high:
        middle = (low + high + 1) // 2
        if blocks_for(layout, middle, step_tokens) <= layout.num_blocks - 1:
            low = middle
        else:
            high = middle - 1
    return low


def verify_fits(layout: KVLayout, max_model_tokens: int, step_tokens: int) -> None:
    """Check that one request of the maximum length fits. Raises: ConfigError."""
    # The last token is sampled but never computed, so it needs no room.
    room = max_request_tokens(layout, max_model_tokens, step_tokens) + 1
    if room < max_model_tokens:
        raise ConfigError(
            f"the KV cache holds {room} tokens of one request, fewer than the context length "
            f"{max_model_tokens}.",
            where="--max-model-len",
            fix=f"lower it to {room}, or raise --gpu-memory-utilization, "
            "--kv-cache-memory-bytes or --num-gpu-blocks-override.",
        )


Has = Callable[[int], bool]
"""Returns whether block i of a request is in the prefix index of one group."""


def window_start(window_tokens: int, num_tokens: int, block_tokens: int) -> int:
    """Return the first block that queries at position `num_tokens` and later can see."""
    return max(0, num_tokens - window_tokens + 1) // block_tokens


def longest_hit(groups: Sequence[tuple[int | None, Has]], limit: int, block_tokens: int) -> int:
    """Return the number of leading blocks, up to `limit`, that are a prefix hit in every group.

    A full-attention group needs all blocks of the prefix, a windowed one only those inside the
    window. Each group may shorten the prefix, so repeat until none does.
    """
    num_blocks = limit
    while True:
        before = num_blocks
        for window, has in groups:
            if window is None:
                num_blocks = _leading(has, num_blocks)
            else:
                num_blocks = _windowed(has, num_blocks, -(-(window - 1) // block_tokens))
        if num_blocks == before:
            return num_blocks


def _leading(has: Has, limit: int) -> int:
    """Return how many leading blocks exist without a gap."""
    for i in range(limit):
        if not has(i):
            return i
    return limit


def _windowed(has: Has, limit: int, needed: int) -> int:
    """Return the largest count n <= limit whose last `needed` blocks (or all n) exist."""
    end = limit
    i = limit - 1
    while i >= 0 and end - i <= needed:
        if not has(i):
            end = i
        i -= 1
    return end

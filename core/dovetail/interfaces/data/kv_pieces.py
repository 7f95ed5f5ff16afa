"""Names of the pieces of a block, for engine and ranks, if blocks are exchanged in units.

A block's key is its group's number and the hashes of its units, last unit first.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from dovetail.interfaces.data.step import CachedLayer, KVLayout, StateLayer


def state_groups(layout: KVLayout, layers: Sequence[CachedLayer]) -> frozenset[int]:
    """Return the groups whose blocks hold the state after their last token."""
    states = {layer.name for layer in layers if isinstance(layer, StateLayer)}
    groups = enumerate(layout.groups)
    return frozenset(g for g, group in groups if not states.isdisjoint(group.layers))


def kept_bytes(layout: KVLayout, layers: Sequence[CachedLayer], unit_tokens: int) -> int:
    """Return the maximum bytes that a store gets from a rank under one name, without its header."""
    whole = layout.num_tensors * layout.block_bytes
    if not unit_tokens or state_groups(layout, layers):
        return whole
    return whole * unit_tokens // layout.block_tokens


def names_of(key: bytes, num_units: int, states: Collection[int]) -> tuple[bytes, ...]:
    """Return the names of a block's pieces, in the order of its units; for a state only that of its
    last unit."""
    if num_units == 1:
        return (key,)
    group, hashes = key[:1], key[1:]
    size = len(hashes) // num_units
    if key[0] in states:
        return (group + hashes[:size],)
    starts = range(len(hashes) - size, -1, -size)
    return tuple(group + hashes[start : start + size] for start in starts)

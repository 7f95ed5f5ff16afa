"""How one rank's blocks are sent to a store: whole, or as pieces that other engines can use.

A piece is a unit of tokens of one group, heads outermost. So an engine with another block size
finds the units it needs, and a rank with other heads cuts out its own. A latent is on every rank,
so any rank's piece will do. A state is the state after a block's last token; it travels whole under
the name of the block's last unit, and only between equal ranks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dovetail.errors import ConfigError
from dovetail.interfaces.attention import AttentionBackend
from dovetail.interfaces.data.kv_pieces import names_of, state_groups
from dovetail.interfaces.data.sealed_block import HEADER_BYTES, seal, unsealed
from dovetail.interfaces.data.spec import RankSpec
from dovetail.interfaces.data.step import (
    CachedLayer,
    EntryLayer,
    KVLayer,
    KVLayout,
    LatentLayer,
    StateLayer,
)
from dovetail.interfaces.kv_connector import Part
from dovetail.layers.dtypes import dtype_of

Payload = np.ndarray
"""A block's bytes, all tensors concatenated. Shapes: [num_tensors * block_bytes] uint8"""


class WholeBlocks:
    """Blocks stored whole."""

    def __init__(self, rank: int, num_bytes: int) -> None:
        self._rank = rank
        self._num_bytes = num_bytes

    def names(self, key: bytes) -> tuple[bytes, ...]:
        """Return the names under which a store has a block."""
        return (key,)

    def ranks_for(self, num_ranks: int) -> Sequence[int]:
        """Return the ranks that have the data needed here."""
        del num_ranks
        return (self._rank,)

    def sealed(self, key: bytes, row: np.ndarray) -> Iterator[tuple[bytes, memoryview]]:
        """Yield (name, content) of a block whose row begins with room for a header. Mutates: row"""
        block = memoryview(row.data)
        seal(block, key, self._rank)
        yield key, block

    def place(self, key: bytes, unit: int, parts: Sequence[Part], out: Payload) -> bool:
        """Copy a block from a store into `out`; return whether it is valid. Mutates: out"""
        del unit
        (part,) = parts
        payload = unsealed(part.block, key, self._rank)
        if payload is None or len(payload) != self._num_bytes:
            return False
        out[:] = np.frombuffer(payload, dtype=np.uint8)
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """What one layer stores in a block, and how its bytes become [head, cell, rest].

    `shape` are the axes in memory order, the last one bytes; `order` moves heads and cells to the
    front. `heads` is the model's number (0: the data has no heads).
    """

    start: int
    num_bytes: int
    shape: tuple[int, ...]
    order: tuple[int, ...]
    heads: int = 0
    is_state: bool = False

    def view(self, payload: Payload) -> np.ndarray:
        """Return the layer's part of a block. Shapes: [K, P / cell, ...] uint8, or the raw axes"""
        own = payload[self.start : self.start + self.num_bytes]
        return own.reshape(self.shape).transpose(self.order)

    def span(self, rank: int, num_ranks: int) -> tuple[int, int]:
        """Return a rank's heads as (first, end)."""
        if not self.heads:
            return 0, 1
        first = rank * self.heads // num_ranks
        return first, first + max(1, self.heads // num_ranks)


class Pieces:
    """Pieces of blocks, for engines that differ in block size or in tensor-parallel size."""

    def __init__(
        self,
        layout: KVLayout,
        layers: Sequence[CachedLayer],
        backend: type[AttentionBackend],
        rank: RankSpec,
        *,
        model_heads: int,
        unit_tokens: int,
    ) -> None:
        known = {layer.name: layer for layer in layers}
        self._rank, self._num_ranks = rank.tensor_rank, rank.tensor_size
        self._num_units = layout.block_tokens // unit_tokens
        self._states = state_groups(layout, layers)
        self._sections = [
            [
                section
                for i, name in enumerate(group.layers)
                for section in _sections(
                    known[name],
                    start=i * layout.block_bytes,
                    block_tokens=layout.block_tokens,
                    backend=backend,
                    model_heads=model_heads,
                    num_ranks=rank.tensor_size,
                )
            ]
            for group in layout.groups
        ]

    def names(self, key: bytes) -> tuple[bytes, ...]:
        """Return the names under which a store has a block: its units in order."""
        return names_of(key, self._num_units, self._states)

    def ranks_for(self, num_ranks: int) -> Sequence[int]:
        """Return which ranks of an engine with `num_ranks` have this rank's heads."""
        chosen: list[int] = []
        missing = {
            (i, head)
            for i, section in enumerate(s for group in self._sections for s in group)
            for head in range(*section.span(self._rank, self._num_ranks))
        }
        own = [self._rank] if num_ranks == self._num_ranks else []
        for rank in (*own, *range(num_ranks)):
            has = {
                (i, head)
                for i, section in enumerate(s for group in self._sections for s in group)
                for head in range(*section.span(rank, num_ranks))
            }
            if missing & has:
                missing -= has
                chosen.append(rank)
        return chosen

    def sealed(self, key: bytes, row: np.ndarray) -> Iterator[tuple[bytes, memoryview]]:
        """Yield (name, content) of each unit of a block; its row starts with room for a header."""
        payload = row[HEADER_BYTES:]
        sections = self._sections[key[0]]
        names = self.names(key)
        for unit, name in enumerate(names):
            parts = [_cut(section, section.view(payload), unit, len(names)) for section in sections]
            block = bytearray(HEADER_BYTES + sum(part.size for part in parts))
            start = HEADER_BYTES
            for part in parts:
                block[start : start + part.size] = part.reshape(-1).data
                start += part.size
            seal(block, name, self._rank)
            yield name, memoryview(block)

    def place(self, key: bytes, unit: int, parts: Sequence[Part], out: Payload) -> bool:
        """Copy a unit from a store into `out`; return whether it is valid and complete.
        Mutates: out"""
        names = self.names(key)
        name, count = names[unit], len(names)
        sections = self._sections[key[0]]
        missing = [set(range(*section.span(self._rank, self._num_ranks))) for section in sections]
        for part in parts:
            is_own = not part.num_ranks
            rank = self._rank if is_own else part.rank
            num_ranks = self._num_ranks if is_own else part.num_ranks
            payload = unsealed(part.block, name, rank)
            if payload is None:
                return False
            data = np.frombuffer(payload, dtype=np.uint8)
            for section, heads in zip(sections, missing, strict=True):
                own = section.span(self._rank, self._num_ranks)
                target = _cut(section, section.view(out), unit, count)
                span = section.span(rank, num_ranks)
                size = target.size // (own[1] - own[0]) * (span[1] - span[0])
                if size > data.size:
                    return False
                source = data[:size].reshape(span[1] - span[0], *target.shape[1:])
                heads -= _copied(source, span, target, own)
                data = data[size:]
            if data.size:
                return False
        return not any(missing)


def _copied(
    source: np.ndarray, span: tuple[int, int], target: np.ndarray, own: tuple[int, int]
) -> set[int]:
    """Copy the heads that two spans have in common; return them. Shapes: [heads of the span, ...]
    both. Mutates: target"""
    low, high = max(span[0], own[0]), min(span[1], own[1])
    if low < high:
        target[low - own[0] : high - own[0]] = source[low - span[0] : high - span[0]]
    return set(range(low, high))


def _cut(section: Section, view: np.ndarray, unit: int, count: int) -> np.ndarray:
    """Return a unit of a layer's part of a block that has `count` units."""
    if section.is_state:
        return view
    cells = view.shape[1] // count
    return view[:, unit * cells : (unit + 1) * cells]


def _sections(
    layer: CachedLayer,
    *,
    start: int,
    block_tokens: int,
    backend: type[AttentionBackend],
    model_heads: int,
    num_ranks: int,
) -> list[Section]:
    """Return the sections of a layer in a block: one, or one for each of several latents and index
    keys."""
    if isinstance(layer, StateLayer):
        size = layer.num_bytes({p.dtype: dtype_of(p.dtype).itemsize for p in layer.parts})
        shape = (1, 1, size)
        return [Section(start=start, num_bytes=size, shape=shape, order=(0, 1, 2), is_state=True)]
    if isinstance(layer, LatentLayer):
        return _token_sections((layer.size, layer.index_size), layer.dtype, start, block_tokens)
    size = layer.block_bytes(block_tokens, dtype_of(layer.dtype).itemsize)
    if isinstance(layer, EntryLayer):
        if layer.unit_tokens == 1:
            sizes = [part.size for part in layer.parts]
            return _token_sections(sizes, layer.dtype, start, block_tokens)
        raise ConfigError(
            f"the entries of {layer.name} come at other rates than tokens, and their blocks cannot "
            "be cut.",
            where="--kv-transfer-config.kv_unit_tokens",
            fix="set it to 0: blocks are then exchanged whole, between equal engines.",
        )
    assert isinstance(layer, KVLayer), "what an encoder wrote is never exchanged"
    if layer.num_kv_heads == 1 < num_ranks and model_heads > num_ranks:
        raise ConfigError(
            f"it is not known which KV heads of layer {layer.name} this rank has.",
            where="--kv-transfer-config.kv_unit_tokens",
            fix="set it to 0: blocks are then exchanged whole, between equal engines.",
        )
    counts = {
        "kind": 2,
        "cell": block_tokens // backend.cell_tokens,
        "head": layer.num_kv_heads,
    }
    axes = backend.kv_axes
    known = [counts[axis] for axis in axes]
    first = (axes.index("head"), axes.index("cell"))
    others = (i for i in range(len(axes) + 1) if i not in first)
    return [
        Section(
            start=start,
            num_bytes=size,
            shape=(*known, size // math.prod(known)),
            order=(*first, *others),
            heads=heads_of(layer.num_kv_heads, num_ranks, model_heads),
        )
    ]


def _token_sections(
    sizes: Sequence[int], dtype: str, start: int, block_tokens: int
) -> list[Section]:
    """Return the sections of a block that has this many numbers of each token, one after another;
    0: none."""
    found = []
    for size in sizes:
        width = size * dtype_of(dtype).itemsize
        if width:
            shape, num_bytes = (1, block_tokens, width), block_tokens * width
            found.append(Section(start=start, num_bytes=num_bytes, shape=shape, order=(0, 1, 2)))
            start += num_bytes
    return found


def heads_of(local_heads: int, num_ranks: int, model_heads: int) -> int:
    """Return the total KV heads of a layer with `local_heads` per rank. If ranks share heads, it is
    the model's number."""
    return model_heads if local_heads == 1 < num_ranks else local_heads * num_ranks

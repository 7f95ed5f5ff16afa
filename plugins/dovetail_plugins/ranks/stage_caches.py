"""StageCaches: one account of KV blocks for stages that cache different layers.

A block has one number on all stages, so every stage has the same groups and as many blocks. The
cache is laid out for common layers: of each window length as many as the stage with the most of
them has. A stage then replaces them with its own layers; surplus common layers take no memory
there.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from dovetail.engine.kv.kv_groups import block_bytes, enough_tokens
from dovetail.interfaces.data.step import CachedLayer, KVLayout

Kind = tuple[type[CachedLayer], int | None]
"""A sort of layer, and its window: layers of one kind may replace each other."""


class StageCaches:
    """The layers of `num_stages` stages of `tensor_size` ranks each."""

    def __init__(self, num_stages: int, tensor_size: int) -> None:
        self.num_stages, self.tensor_size = num_stages, tensor_size
        self._own_names: list[dict[str, str]] = []

    def common_layers(self, layers: Sequence[Sequence[CachedLayer]]) -> Sequence[CachedLayer]:
        """Return the layers to lay a cache out for. `layers` are each rank's; they are the same
        within a stage. Mutates: self"""
        stages = [layers[stage * self.tensor_size] for stage in range(self.num_stages)]
        by_kind = [_by_kind(own) for own in stages]
        longest: dict[Kind, list[CachedLayer]] = {}
        for kinds in by_kind:
            for kind, own in kinds.items():
                longest[kind] = _larger(longest.get(kind, []), own)
        self._own_names = [
            {
                common.name: mine.name
                for kind, own in kinds.items()
                for common, mine in zip(longest[kind], own, strict=False)
            }
            for kinds in by_kind
        ]
        if self.num_stages == 1:
            return stages[0]
        return [layer for own in longest.values() for layer in own]

    def own_layouts(self, layout: KVLayout) -> list[KVLayout]:
        """Return each stage's layout, of one made for the common layers."""
        if self.num_stages == 1:
            return [layout]
        return [_renamed(layout, names) for names in self._own_names]


def _by_kind(layers: Sequence[CachedLayer]) -> dict[Kind, list[CachedLayer]]:
    found: dict[Kind, list[CachedLayer]] = {}
    for layer in layers:
        found.setdefault((type(layer), layer.window_tokens), []).append(layer)
    return found


def _larger(some: list[CachedLayer], own: list[CachedLayer]) -> list[CachedLayer]:
    """Return the longer list, of each place the layer with the larger block."""
    longer = list(own) if len(own) > len(some) else list(some)
    tokens = enough_tokens([*some, *own], 1)
    for i, pair in enumerate(zip(some, own, strict=False)):
        longer[i] = max(pair, key=lambda layer: block_bytes(layer, tokens))
    return longer


def _renamed(layout: KVLayout, names: dict[str, str]) -> KVLayout:
    """Return the layout with the common layers replaced by a stage's own."""
    groups = tuple(
        msgspec.structs.replace(
            group, layers=tuple(names[name] for name in group.layers if name in names)
        )
        for group in layout.groups
    )
    num_tensors = max((len(group.layers) for group in groups), default=0)
    return msgspec.structs.replace(layout, groups=groups, num_tensors=num_tensors)

"""StageCaches: one account of KV blocks for stages that cache different layers.

A block has one number on all stages, so every stage has the same groups and as many blocks. The
cache is laid out for layers that stand for those of every stage: of each window length as many as
the stage with the most of them has. A stage then puts its own layers in their place; what stands
for more than it has takes no memory there.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from dovetail.interfaces.step import CachedLayer, KVGroup, KVLayout


class StageCaches:
    """The layers of `num_stages` stages of `tensor_size` ranks each."""

    def __init__(self, num_stages: int, tensor_size: int) -> None:
        self.num_stages, self.tensor_size = num_stages, tensor_size
        self._own_names: list[dict[str, str]] = []

    def common_layers(self, layers: Sequence[Sequence[CachedLayer]]) -> Sequence[CachedLayer]:
        """Return the layers to lay a cache out for. `layers` are each rank's; those of a stage are
        alike. Mutates: self"""
        stages = [layers[stage * self.tensor_size] for stage in range(self.num_stages)]
        by_window = [_by_window(own) for own in stages]
        longest: dict[int | None, list[CachedLayer]] = {}
        for windows in by_window:
            for window, own in windows.items():
                if len(own) > len(longest.get(window, ())):
                    longest[window] = own
        self._own_names = [
            {
                common.name: mine.name
                for window, own in windows.items()
                for common, mine in zip(longest[window], own, strict=False)
            }
            for windows in by_window
        ]
        if self.num_stages == 1:
            return stages[0]
        return [layer for own in longest.values() for layer in own]

    def own_layouts(self, layout: KVLayout) -> list[KVLayout]:
        """Return each stage's layout, of one made for the common layers."""
        if self.num_stages == 1:
            return [layout]
        return [_renamed(layout, names) for names in self._own_names]


def _by_window(layers: Sequence[CachedLayer]) -> dict[int | None, list[CachedLayer]]:
    found: dict[int | None, list[CachedLayer]] = {}
    for layer in layers:
        found.setdefault(layer.window_tokens, []).append(layer)
    return found


def _renamed(layout: KVLayout, names: dict[str, str]) -> KVLayout:
    """Return the layout with a stage's layers in the place of those that stand for them."""
    groups = tuple(
        KVGroup(
            layers=tuple(names[name] for name in group.layers if name in names),
            window_tokens=group.window_tokens,
        )
        for group in layout.groups
    )
    num_tensors = max((len(group.layers) for group in groups), default=0)
    return msgspec.structs.replace(layout, groups=groups, num_tensors=num_tensors)

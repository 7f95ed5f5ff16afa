"""LayerGroups: the KV group of each layer, and what a step prepares for each.

States are not attended to: their layers find rows directly by the group's layout.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from dovetail.interfaces.attention import AttentionBackend, BatchLayout
from dovetail.interfaces.data.step import CachedLayer, KVLayer, KVLayout, StateLayer
from dovetail.layers.context import LayerCache
from dovetail.layers.state import RowStates
from dovetail.runner.kv.allocation import group_of_layers
from dovetail.runner.rows.batch import StepInputs
from dovetail.runner.rows.block_table import BlockTable


class LayerGroups:
    """The groups of a layout; `step_layers`, which keep no cache, form one more at the end."""

    def __init__(
        self, layout: KVLayout, layers: Sequence[CachedLayer], step_layers: Sequence[KVLayer]
    ) -> None:
        own = group_of_layers(layout)
        last = len(layout.groups)
        self.states = {one.name: own[one.name] for one in layers if isinstance(one, StateLayer)}
        self._attended = {name: g for name, g in own.items() if name not in self.states}
        self._attended |= {layer.name: last for layer in step_layers}
        self._used = sorted(set(self._attended.values()))
        of_keys = all(isinstance(one, KVLayer) for one in layers)
        self.are_of_keys = of_keys and not step_layers
        """Whether all caches are keys and values, which only later tokens see."""

    def prepared(
        self, backend: AttentionBackend, layouts: Sequence[BatchLayout]
    ) -> Mapping[str, Any]:
        """Return each layer's prepared view of a step, by name. `layouts` are the groups'."""
        by_group = {group: backend.prepare(layouts[group]) for group in self._used}
        found = {name: by_group[group] for name, group in self._attended.items()}
        states = {group: RowStates(layouts[group]) for group in set(self.states.values())}
        return found | {name: states[group] for name, group in self.states.items()}


class StateKeeper:
    """Undoes what a step does to its rows' states, so that it can run again."""

    def __init__(
        self,
        groups: LayerGroups,
        tables: Sequence[BlockTable],
        caches: Mapping[str, LayerCache],
    ) -> None:
        self._tables = {group: tables[group] for group in set(groups.states.values())}
        self._parts = state_parts(groups, caches)

    @property
    def has_states(self) -> bool:
        """Return whether any layer has a state."""
        return bool(self._parts)

    def keep(self, inputs: StepInputs) -> Callable[[], None]:
        """Return a function that restores the states that a step of these rows replaces."""
        if not self._parts:
            return put_nothing_back
        blocks = {g: self._written(table, inputs) for g, table in self._tables.items()}
        before = [part[blocks[group]] for group, part in self._parts]

        def put_back() -> None:
            for (group, part), old in zip(self._parts, before, strict=True):
                part[blocks[group]] = old

        return put_back

    def _written(self, table: BlockTable, inputs: StepInputs) -> torch.Tensor:
        """Return the blocks that contain the step's tokens. Shapes: [B] int64"""
        places = inputs.positions // table.block_tokens
        found = np.unique(table.ids[inputs.token_rows, places])
        return torch.from_numpy(found.astype(np.int64))


def state_parts(
    groups: LayerGroups, caches: Mapping[str, LayerCache]
) -> list[tuple[int, torch.Tensor]]:
    """Return the parts of all layers' states, each with its group number. Shapes: each part [N,
    ...]"""
    found: list[tuple[int, torch.Tensor]] = []
    for name, group in groups.states.items():
        cache = caches[name]
        assert isinstance(cache, dict)
        found.extend((group, part) for part in cache.values())
    return found


def put_nothing_back() -> None:
    """Restore nothing: nothing was saved."""

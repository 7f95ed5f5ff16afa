"""State: one recurrent layer's handle on the cached states of its rows.

Owns no memory: it knows its name and the shape of its state; the forward context has the rest. The
state after a row's token is in that token's block; the next token continues from there.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from dovetail.interfaces.attention import BatchLayout
from dovetail.interfaces.data.spec import RunSpec
from dovetail.interfaces.data.step import StateLayer, StatePart
from dovetail.layers.context import forward_context
from dovetail.layers.kept import CachingLayer
from dovetail_kernels.states import StateRows

CONV, STATE, IDS = "conv", "state", "ids"
"""The kind of a part: the layer's latest inputs unchanged, a sum over all inputs, or token ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of a row's state on this rank. `holds`: CONV or STATE, which have separate dtypes, or
    IDS."""

    name: str
    shape: tuple[int, ...]
    holds: str = STATE


class RowStates:
    """Locates the states of a step's rows, for all layers of a KV group."""

    def __init__(self, layout: BatchLayout) -> None:
        self.layout = layout

    def arguments(self) -> dict[str, Any]:
        """Return the row arguments of all state kernels (see dovetail_kernels.states).

        Shapes: query_start [R + 1], seq_lens [R], block_table [R, B], row_block_tokens [R], all
        int32
        """
        return {
            "query_start": self.layout.query_start,
            "seq_lens": self.layout.seq_lens,
            "block_table": self.layout.block_table,
            "block_tokens": self.layout.block_tokens,
            "row_block_tokens": self.layout.row_block_tokens,
        }

    @cached_property
    def native(self) -> StateRows:
        """Return the same for native calls."""
        return StateRows(**self.arguments())


class State(CachingLayer):
    """The state of one layer."""

    def __init__(self, name: str, parts: tuple[Part, ...]) -> None:
        super().__init__(name)
        self.parts = parts

    def kept(self, run: RunSpec) -> StateLayer:
        """Return the layer's cached state per row."""
        types = {CONV: run.conv_state_dtype, STATE: run.state_dtype, IDS: "float32"}
        parts = (
            StatePart(name=part.name, shape=part.shape, dtype=types[part.holds])
            for part in self.parts
        )
        return StateLayer(name=self.name, parts=tuple(parts))

    def step(self) -> tuple[dict[str, torch.Tensor], RowStates]:
        """Return the parts of all states by name, and the locations of the running step's rows.

        Shapes: each part [N, *shape]
        """
        context = forward_context()
        rows, parts = context.prepared[self.name], context.caches[self.name]
        assert isinstance(rows, RowStates)
        assert isinstance(parts, dict)
        return parts, rows

"""State: one recurrent layer's handle on what it keeps of its rows.

Owns no memory; it knows its name and what its state looks like, the forward context knows the rest.
The state after a row's token lies in the block of that token; the next token's begins from there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from dovetail.interfaces.attention import BatchLayout
from dovetail.interfaces.spec import RunSpec
from dovetail.interfaces.step import StateLayer, StatePart
from dovetail.layers.context import forward_context
from dovetail.layers.kept import Keeper

CONV, STATE = "conv", "state"
"""What a part holds: the layer's latest inputs as they were, or a sum over all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of a state, of one row on this rank. `holds`: CONV or STATE, which have types of
    their own."""

    name: str
    shape: tuple[int, ...]
    holds: str = STATE


@dataclass(frozen=True, slots=True, kw_only=True)
class StateStep:
    """Where the states of a step's rows lie, and the parts' tensors by name.

    Shapes: query_start [R + 1], seq_lens [R], block_table [R, B], all int32; each part [N, ...]
    """

    query_start: torch.Tensor
    seq_lens: torch.Tensor
    block_table: torch.Tensor
    block_tokens: int
    parts: dict[str, torch.Tensor]

    def rows(self) -> dict[str, Any]:
        """Return the arguments that all kernels over states share."""
        return {
            "query_start": self.query_start,
            "seq_lens": self.seq_lens,
            "block_table": self.block_table,
            "block_tokens": self.block_tokens,
        }


class State(Keeper):
    """The state of one layer."""

    def __init__(self, name: str, parts: tuple[Part, ...]) -> None:
        super().__init__(name)
        self.parts = parts

    def kept(self, run: RunSpec) -> StateLayer:
        """Return what a row keeps in this layer."""
        types = {CONV: run.conv_state_dtype, STATE: run.state_dtype}
        parts = (
            StatePart(name=part.name, shape=part.shape, dtype=types[part.holds])
            for part in self.parts
        )
        return StateLayer(name=self.name, parts=tuple(parts))

    def step(self) -> StateStep:
        """Return where the states of the running step lie."""
        context = forward_context()
        layout, parts = context.prepared[self.name], context.caches[self.name]
        assert isinstance(layout, BatchLayout)
        assert isinstance(parts, dict)
        return StateStep(
            query_start=layout.query_start,
            seq_lens=layout.seq_lens,
            block_table=layout.block_table,
            block_tokens=layout.block_tokens,
            parts=parts,
        )

"""Short convolutions after matrices: y + conv(y), over a channel's last few inputs. The
convolutions of a decoder layer share one state."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import torch

from dovetail.interfaces.attention import BatchLayout
from dovetail.interfaces.model import BuildContext
from dovetail.layers.dtypes import dtype_of
from dovetail.layers.linear import Linear
from dovetail.layers.linear.placement import Part
from dovetail.layers.state import CONV, RowStates
from dovetail.layers.state import Part as StatePart
from dovetail_kernels import short_conv
from dovetail_kernels.short_conv.native import ShortConv as NativeShortConv
from dovetail_plugins.layers.mixers.recurrent import DividedVectors, OverRows, ShortConv

Step = tuple[Mapping[str, torch.Tensor], RowStates]
"""The states of a decoder layer's convolutions by name, and where a step's rows have theirs."""


class AddedConv(ShortConv):
    """factor (y + conv(y)) of the channels that `part` says; `name` is that of its state."""

    def __init__(
        self, context: BuildContext, name: str, part: Part, width: int, *, factor: float = 1.0
    ) -> None:
        super().__init__(context, (part,), width, bias=False)
        self.name, self.factor = name, factor
        self.part = self.state_part(name)

    def added(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        """Shapes: x [T, C] -> [T, C]. Mutates: the state"""
        states, rows = step
        found = x + self(x.contiguous(), states[self.name], rows)
        return found if self.factor == 1.0 else found * self.factor


def whole_part(size: int) -> Part:
    """Return the part of channels that every rank has."""
    return Part(name="", full=size, local=size, start=0)


class MixedConv(DividedVectors):
    """A convolution whose taps each token adds to, the same for all channels of a head:

        out[t, c] = factor (x[t, c] + sum over lags i of (static_w[c, i] + d[t, h, i]) x[t - i, c])

    with d from another input of the token. Shapes: static_w [C, width]"""

    def __init__(
        self,
        context: BuildContext,
        name: str,
        path: str,
        part: Part,
        width: int,
        *,
        head_size: int,
        factor: float,
    ) -> None:
        super().__init__()
        self.name, self.width, self.factor = name, width, factor
        self.part = StatePart(name=name, shape=(part.local, width - 1), holds=CONV)
        self.add_vector(context, "static_w", (part,), behind=(width,))
        full, local, start = (n // head_size * width for n in (part.full, part.local, part.start))
        taps = Part(name="", full=full, local=local, start=start)
        hidden = context.model.hidden_size
        self.weight_proj = Linear(context, f"{path}.weight_proj", hidden, (taps,), bias=False)
        none = torch.zeros(part.local, width, dtype=dtype_of(context.model.dtype))
        self.register_buffer("none", none.to(context.device), persistent=False)
        self._store = OverRows(
            short_conv.OP, context, NativeShortConv, lambda: {"activation": "none"}
        )
        self._store.finish()

    def added(self, x: torch.Tensor, step: Step, source: torch.Tensor) -> torch.Tensor:
        """Shapes: x [T, C], source [T, E] -> [T, C]. Mutates: the state"""
        states, rows = step
        state = states[self.name]
        own = self.weight_proj(source).float().unflatten(-1, (-1, 1, self.width))
        static = self.get_parameter("static_w").float()
        taps = static.unflatten(0, (own.shape[1], -1)) + own
        seen = last_inputs(x, state, rows.layout).unflatten(1, (own.shape[1], -1))
        found = (seen * taps).sum(dim=-1).flatten(1)
        self._store(state, rows, x=x.contiguous(), weight=self.get_buffer("none"), bias=None)
        return ((found + x.float()) * self.factor).to(x.dtype)


def last_inputs(x: torch.Tensor, state: torch.Tensor, layout: BatchLayout) -> torch.Tensor:
    """Return each token's last inputs, its own first; zeros before its row. Shapes: x [T, C], state
    [N, C, width - 1] -> [T, C, width] float32"""
    count = state.shape[-1]
    found = x.new_zeros(*x.shape, count + 1, dtype=torch.float32)
    sizes = layout.row_block_tokens
    each = [layout.block_tokens] * layout.num_rows if sizes is None else sizes.tolist()
    for row, (start, end) in enumerate(pairwise(layout.query_start_host)):
        before = layout.seq_lens_host[row] - (end - start)
        old = x.new_zeros(count, x.shape[1], dtype=torch.float32)
        if before:
            old = state[layout.block_table[row, (before - 1) // each[row]]].float().mT
        if end > start:
            joined = torch.cat([old, x[start:end].float()])
            found[start:end] = joined.unfold(0, count + 1, 1).flip(-1)
    return found

"""Mamba's mixer: a convolution and a selective scan between two matrices.

For the T tokens of a step (D inner size, S numbers of state a channel, K rank of the time step):

    x, z = in_proj(h)                                    # [T, D] each
    x = silu(conv1d(x))                                  # over the last few inputs of each channel
    dt, b, c = x_proj(x)                                 # [T, K], [T, S], [T, S]
    y = scan(x, dt_proj(dt), b, c) * silu(z)             # [T, D]
    h = out_proj(y)

Source: Gu and Dao, Mamba: linear-time sequence modeling with selective state spaces, 2023.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from dovetail.interfaces.model import BuildContext
from dovetail.layers.linear import (
    ColumnParallelLinear,
    MergedColumnParallelLinear,
    RowParallelLinear,
    even_part,
)
from dovetail.layers.state import Part, State
from dovetail.parallel.groups import tensor_group
from dovetail_kernels import selective_scan
from dovetail_kernels.op import Arguments
from dovetail_kernels.selective_scan.native import SelectiveScan
from dovetail_plugins.layers.mixers.recurrent import DividedVectors, OverRows, ShortConv

CONV, SCAN = "conv", "scan"
"""The parts of the state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MambaSizes:
    """The sizes of a mixer: inner channels, numbers of state for each, rank of the time step, width
    of the convolution."""

    inner: int
    state: int
    time_rank: int
    conv: int
    has_bias: bool = False
    has_conv_bias: bool = True


class MambaMixer(DividedVectors):
    """The mixer of one layer. The channels are divided over ranks, their states with them."""

    def __init__(self, context: BuildContext, name: str, sizes: MambaSizes) -> None:
        super().__init__()
        hidden, inner = context.model.hidden_size, sizes.inner
        part = even_part("", inner, tensor_group(context.rank), name)
        self.sizes = sizes
        self.in_proj = MergedColumnParallelLinear(
            context, f"{name}.in_proj", hidden, {"x": inner, "z": inner}, bias=sizes.has_bias
        )
        self.conv1d = ShortConv(context, (part,), sizes.conv, bias=sizes.has_conv_bias, act="silu")
        width = sizes.time_rank + 2 * sizes.state
        self.x_proj = RowParallelLinear(context, f"{name}.x_proj", inner, width)
        self.dt_proj = ColumnParallelLinear(
            context, f"{name}.dt_proj", sizes.time_rank, inner, bias=True
        )
        self.out_proj = RowParallelLinear(
            context, f"{name}.out_proj", inner, hidden, bias=sizes.has_bias
        )
        self.add_vector(context, "A_log", (part,), behind=(sizes.state,), dtype=torch.float32)
        self.add_vector(context, "D", (part,), dtype=torch.float32)
        scan = Part(name=SCAN, shape=(part.local, sizes.state))
        self.state = State(name, (self.conv1d.state_part(CONV), scan))
        self._scan = OverRows(selective_scan.OP, context, SelectiveScan, self._bound)

    def finish(self) -> None:
        """Make the decay of the states of its logarithm. Mutates: self"""
        decay = -torch.exp(self.get_parameter("A_log").data)
        self.register_buffer("decay", decay, persistent=False)
        self._scan.finish()

    def _bound(self) -> Arguments:
        """Return the arguments of the scan that are this layer's."""
        return {"a": self.get_buffer("decay"), "d": self.get_parameter("D").data, "dt_bias": None}

    def time_and_inputs(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the input of each token's time step, and its vectors b and c.

        Shapes: x [T, D of this rank] -> [T, K], [T, S], [T, S]
        """
        sizes = self.sizes
        widths = (sizes.time_rank, sizes.state, sizes.state)
        dt, b, c = self.x_proj(x).split(widths, dim=-1)
        return dt, b, c

    def forward(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """Shapes: x, residual [T, E] -> [T, E]"""
        x, z = self.in_proj(x).chunk(2, dim=-1)
        parts, rows = self.state.step()
        x = self.conv1d(x, parts[CONV], rows)
        dt, b, c = self.time_and_inputs(x)
        dt = self.dt_proj(dt)
        y = self._scan(parts[SCAN], rows, x=x, dt=dt, b=b, c=c, z=z)
        return self.out_proj(y, residual)

"""Mamba 2's mixer: a convolution and the recurrence of heads between two matrices.

For the T tokens of a step (H heads of P channels, D = H P; S numbers of state a channel; G groups
of heads that share b and c):

    z, xbc, dt = in_proj(h)                              # [T, D], [T, D + 2 G S], [T, H]
    x, b, c = silu(conv1d(xbc))                          # [T, D], [T, G S], [T, G S]
    y = norm(ssd(x, dt, b, c), z)                        # [T, D], gated by z, normed or not
    h = out_proj(y)

Source: Dao and Gu, Transformers are SSMs, 2024.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from dovetail.interfaces.model import BuildContext
from dovetail.layers.linear import Linear, RowParallelLinear, even_part, split_heads
from dovetail.layers.linear.placement import Part as Rows
from dovetail.layers.state import Part, State
from dovetail.parallel.collectives import all_reduce
from dovetail.parallel.groups import tensor_group
from dovetail_kernels import ssd
from dovetail_kernels.op import Arguments
from dovetail_kernels.ssd import chunked
from dovetail_kernels.ssd.native import Ssd
from dovetail_plugins.layers.mixers.recurrent import (
    DividedVectors,
    OverRows,
    ShortConv,
    gated_norm_kernel,
)
from dovetail_plugins.layers.product import Product

CONV, SSD = "conv", "ssd"
"""The parts of the state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba2Sizes:
    """The sizes of a mixer. `norm_group`: the number of channels normed together, 0 for no norm;
    `gate_first`: they are gated before. `dt_limit` are the limits of time steps."""

    heads: int
    head: int
    groups: int
    state: int
    conv: int
    norm_group: int
    gate_first: bool = True
    eps: float = 1e-5
    dt_limit: tuple[float, float] = (0.0, float("inf"))
    has_bias: bool = False
    has_out_bias: bool = False
    has_conv_bias: bool = True

    @property
    def inner(self) -> int:
        """Return the channels of all heads."""
        return self.heads * self.head


class GroupGatedNorm(DividedVectors):
    """The norm of groups of channels and a gate, fused; a group may span several ranks."""

    def __init__(self, context: BuildContext, part: Rows, sizes: Mamba2Sizes) -> None:
        super().__init__()
        self.group = tensor_group(context.rank)
        self.sizes = sizes
        self.is_cut = sizes.norm_group > part.local
        self.add_vector(context, "weight", (part,))
        self._run = gated_norm_kernel(
            context, sizes.norm_group, eps=sizes.eps, gate_first=sizes.gate_first
        )

    def forward(self, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        """Return the gated norm. Shapes: x, gate [T, D of this rank] -> [T, D of this rank]"""
        weight = self._parameters["weight"]
        assert weight is not None
        if self.is_cut:
            return self._of_ranks(x, gate, weight)
        return self._run(x, gate, weight)

    def _of_ranks(self, x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Return the norm of one group that is divided over all ranks."""
        sizes, silu = self.sizes, F.silu(gate.float())
        assert sizes.norm_group == sizes.inner, "a group of channels is on some of the ranks"
        inner = x.float() * silu if sizes.gate_first else x.float()
        squares = all_reduce(inner.pow(2).sum(-1, keepdim=True), self.group)
        inner = inner * torch.rsqrt(squares / sizes.inner + sizes.eps) * weight.float()
        return (inner if sizes.gate_first else inner * silu).to(x.dtype)


class Mamba2Mixer(DividedVectors):
    """The mixer of one layer. Heads are divided over ranks, and groups if there are enough."""

    def __init__(self, context: BuildContext, name: str, sizes: Mamba2Sizes) -> None:
        super().__init__()
        group, hidden = tensor_group(context.rank), context.model.hidden_size
        heads, groups = split_heads(group, sizes.heads, sizes.groups, name)
        self.sizes, self.heads, self.groups = sizes, heads, groups
        x = even_part("x", sizes.inner, group, name)
        first = group.rank * sizes.groups // group.size * sizes.state
        b, c = (
            Rows(name=n, full=sizes.groups * sizes.state, local=groups * sizes.state, start=first)
            for n in "bc"
        )
        z, dt = even_part("z", sizes.inner, group, name), even_part("dt", sizes.heads, group, name)
        self.in_proj = Linear(
            context, f"{name}.in_proj", hidden, (z, x, b, c, dt), bias=sizes.has_bias
        )
        self.widths = (x.local, x.local + b.local + c.local, dt.local)
        self.conv1d = ShortConv(
            context, (x, b, c), sizes.conv, bias=sizes.has_conv_bias, act="silu"
        )
        for leaf in ("A_log", "D", "dt_bias"):
            self.add_vector(context, leaf, (dt,), dtype=torch.float32)
        normed = sizes.norm_group > 0
        self.norm = GroupGatedNorm(context, x, sizes) if normed else Product(context, "silu")
        self.out_proj = self.build_out(context, f"{name}.out_proj")
        state_part = Part(name=SSD, shape=(heads, sizes.head, sizes.state))
        self.state = State(name, (self.conv1d.state_part(CONV), state_part))
        self._ssd = OverRows(ssd.OP, context, Ssd, self._bound, plain=chunked.run)

    def build_out(self, context: BuildContext, name: str) -> RowParallelLinear:
        """Return the output matrix of the recurrence."""
        sizes, hidden = self.sizes, context.model.hidden_size
        return RowParallelLinear(context, name, sizes.inner, hidden, bias=sizes.has_out_bias)

    def finish(self) -> None:
        """Make the decay of the states of its logarithm. Mutates: self"""
        decay = -torch.exp(self.get_parameter("A_log").data)
        self.register_buffer("decay", decay, persistent=False)
        self._ssd.finish()

    def _bound(self) -> Arguments:
        """Return the arguments of the recurrence that are this layer's."""
        d, bias = (self.get_parameter(leaf).data for leaf in ("D", "dt_bias"))
        limit = self.sizes.dt_limit
        return {"a": self.get_buffer("decay"), "d": d, "dt_bias": bias, "dt_limit": limit}

    def projected(self, x: torch.Tensor) -> torch.Tensor:
        """Return z, x, b, c and the time steps, concatenated. Shapes: x [T, E] -> [T, ...]"""
        return self.in_proj(x)

    def forward(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """Shapes: x, residual [T, E] -> [T, E]"""
        z, xbc, dt = self.projected(x).split(self.widths, dim=-1)
        parts, rows = self.state.step()
        wide = self.groups * self.sizes.state
        xbc = self.conv1d(xbc, parts[CONV], rows)
        x, b, c = xbc.split((self.widths[0], wide, wide), dim=-1)
        x = x.unflatten(-1, (self.heads, self.sizes.head))
        b, c = (y.unflatten(-1, (self.groups, self.sizes.state)) for y in (b, c))
        y = self._ssd(parts[SSD], rows, x=x, dt=dt, b=b, c=c)
        return self.out_proj(self.norm(y.flatten(-2), z), residual)

"""The mixer of gated delta networks: a convolution and the gated delta rule between two matrices.

For the T tokens of a step (K key heads of D numbers, H value heads of V numbers, C = 2 K D + H V):

    q, k, v, z = in_proj_qkvz(x)                         # [T, C + H V] together
    beta, decay = in_proj_ba(x)                          # [T, H] each
    q, k, v = silu(conv1d(q, k, v))
    y = norm(gated_delta(q, k, v, decay, beta)) silu(z)  # each head is normed: [T, H V]
    h = out_proj(y)

Source: Yang et al., Gated Delta Networks, 2024 (arXiv 2412.06464), as Qwen3-Next has them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from dovetail.errors import ConfigError
from dovetail.interfaces.model import BuildContext
from dovetail.layers.dtypes import dtype_of
from dovetail.layers.linear import (
    ColumnParallelLinear,
    Linear,
    RowParallelLinear,
    even_part,
    split_heads,
)
from dovetail.layers.linear.placement import Part as Rows
from dovetail.layers.norm import RMSNorm, rms_kernel
from dovetail.layers.opaque import is_traced
from dovetail.layers.state import Part, State
from dovetail.parallel.groups import tensor_group
from dovetail_kernels import gated_delta
from dovetail_kernels.gated_delta import chunked
from dovetail_kernels.gated_delta.native import GatedDelta
from dovetail_kernels.op import Arguments
from dovetail_plugins.layers.attention.output_gate import OutputGate
from dovetail_plugins.layers.mixers.recurrent import (
    DividedVectors,
    OverRows,
    ShortConv,
    gated_norm_kernel,
)

CONV, DELTA = "conv", "delta"
"""The parts of the state."""
QKVZ, QKV, BA = "qkvz", "qkv", "ba"
"""Names of joints: QKVZ and BA hold, for each key head, its rows of all that belongs to
it; QKV holds all queries, then all keys, then all values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaSizes:
    """The sizes of a mixer: `key_heads` are K, `value_heads` H, `key_size` D, `value_size` V.
    `beta_scale` is the maximum beta, `least_log` (if not 0) the logarithm of the smallest decay.
    `gate` is the function of the outputs' gates, silu or sigmoid.
    `is_tiled`: the output's matrix takes the first value head of every key head, then the second
    of each, and so on."""

    key_heads: int
    value_heads: int
    key_size: int
    value_size: int
    conv: int
    act: str = "silu"
    gate: str = "silu"
    eps: float = 1e-6
    beta_scale: float = 1.0
    least_log: float = 0.0
    is_tiled: bool = False

    @property
    def widths(self) -> dict[str, int]:
        """Return the rows that belong to one key head, by part."""
        values = self.value_heads // self.key_heads * self.value_size
        return {"q": self.key_size, "k": self.key_size, "v": values, "z": values}


class HeadNorm(nn.Module):
    """The norm of each head, and then a gate, silu or sigmoid. All heads have the same weight."""

    def __init__(self, context: BuildContext, size: int, *, eps: float, gate: str = "silu") -> None:
        super().__init__()
        empty = torch.empty(size, dtype=dtype_of(context.model.dtype), device=context.device)
        self.weight = nn.Parameter(empty, requires_grad=False)
        self._eps, self._open = eps, OutputGate(context) if gate == "sigmoid" else None
        self._norm = rms_kernel(context, size, eps=eps)
        self._run = gated_norm_kernel(context, size, eps=eps, gate_first=False)

    def forward(self, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        """Return the normed heads times their gates. Shapes: x, gate [T, H V] -> [T, H V]"""
        if self._open is None:
            return self._run(x, gate, self.weight)
        heads = x.reshape(-1, len(self.weight))
        if self._norm is None or is_traced():
            normed = F.rms_norm(heads, self.weight.shape, self.weight, self._eps)
        else:
            normed = self._norm(heads, self.weight)
        return self._open(normed.view(x.shape), gate)


class DeltaRule(DividedVectors):
    """The convolution, the decays and the state of one layer's delta rule. Key heads are divided
    over ranks, with the value heads that share them. `by_channel`: each channel of a key decays by
    itself, by dt_bias [H D]."""

    def __init__(
        self, context: BuildContext, name: str, sizes: DeltaSizes, *, by_channel: bool = False
    ) -> None:
        super().__init__()
        group = tensor_group(context.rank)
        self.key_heads = group.share(sizes.key_heads, f"{name} key heads")
        self.value_heads, _ = split_heads(group, sizes.value_heads, sizes.key_heads, name)
        self.sizes, self.by_channel = sizes, by_channel
        full = {part: rows * sizes.key_heads for part, rows in sizes.widths.items()}
        parts = {part: even_part(part, rows, group, name) for part, rows in full.items()}
        parts |= {part: even_part(part, sizes.value_heads, group, name) for part in BA}
        self.full, self.parts = full, parts
        q, k, v = (parts[part] for part in QKV)
        self.conv1d = ShortConv(context, (q, k, v), sizes.conv, bias=False, act=sizes.act)
        self.add_vector(context, "A_log", (parts["b"],), dtype=torch.float32)
        bias = even_part("dt", sizes.value_heads * sizes.key_size, group, name)
        own = bias if by_channel else parts["b"]
        self.add_vector(context, "dt_bias", (own,), dtype=torch.float32)
        delta_part = Part(name=DELTA, shape=(self.value_heads, sizes.key_size, sizes.value_size))
        self.state = State(name, (self.conv1d.state_part(CONV), delta_part))
        self._widths = (q.local, k.local, v.local)
        self._delta = OverRows(gated_delta.OP, context, GatedDelta, self._bound, plain=chunked.run)

    def finish(self) -> None:
        """Make the native call of the heads' parameters. Mutates: self"""
        self._delta.finish()

    def _bound(self) -> Arguments:
        """Return the arguments of the delta rule that are this layer's."""
        decay, bias = (self.get_parameter(leaf).data for leaf in ("A_log", "dt_bias"))
        return {
            "a_log": decay,
            "dt_bias": bias.unflatten(0, (self.value_heads, -1)) if self.by_channel else bias,
            "scale": self.sizes.key_size**-0.5,
            "beta_scale": self.sizes.beta_scale,
            "least_log": self.sizes.least_log,
        }

    def learned(self, qkv: torch.Tensor, decay: torch.Tensor, beta: torch.Tensor) -> torch.Tensor:
        """Return the delta rule's output for convolved q, k and v. Mutates: the rows' states

        Shapes: qkv [T, C], decay [T, H] or [T, H D], beta [T, H] -> [T, H V]
        """
        parts, rows = self.state.step()
        counts = (self.key_heads, self.key_heads, self.value_heads)
        q, k, v = (
            part.unflatten(-1, (count, -1))
            for part, count in zip(
                self.conv1d(qkv, parts[CONV], rows).split(self._widths, dim=-1), counts, strict=True
            )
        )
        if self.by_channel:
            decay = decay.unflatten(-1, (self.value_heads, -1))
        y = self._delta(parts[DELTA], rows, q=q, k=k, v=v, decay_in=decay, beta_in=beta)
        return y.flatten(-2)


class DeltaMixer(DeltaRule):
    """The mixer of one layer."""

    def __init__(self, context: BuildContext, name: str, sizes: DeltaSizes) -> None:
        super().__init__(context, name, sizes)
        if sizes.is_tiled and tensor_group(context.rank).size > 1:
            raise ConfigError(
                f"{name}.out_proj cannot be divided over ranks: its blocks of numbers are of "
                "several heads.",
                where="--tensor-parallel-size",
                fix="use 1, or a file whose ssm_out matrices are F16, BF16 or Q8_0.",
            )
        self.build_inputs(context, name)
        self.norm = HeadNorm(context, sizes.value_size, eps=sizes.eps, gate=sizes.gate)
        inner, hidden = sizes.value_heads * sizes.value_size, context.model.hidden_size
        self.out_proj = RowParallelLinear(context, f"{name}.out_proj", inner, hidden)

    def build_inputs(self, context: BuildContext, name: str) -> None:
        """Make the matrices of the layer's input. Mutates: self"""
        sizes, hidden = self.sizes, context.model.hidden_size
        of_key = sizes.value_heads // sizes.key_heads
        self.in_proj_qkvz = Linear(
            context,
            f"{name}.in_proj_qkvz",
            hidden,
            tuple(self.parts[part] for part in QKVZ),
            bias=False,
            joints={QKVZ: sizes.widths, QKV: {part: self.full[part] for part in QKV}},
        )
        self.in_proj_ba = Linear(
            context,
            f"{name}.in_proj_ba",
            hidden,
            tuple(self.parts[part] for part in BA),
            bias=False,
            joints={BA: dict.fromkeys(BA, of_key)},
        )

    def inputs(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return q, k and v side by side, z, beta and decay. Shapes: x [T, E] -> [T, C], [T, H V],
        [T, H] twice"""
        width = sum(self._widths)
        both = self.in_proj_qkvz(x)
        qkv, z = both.split((width, both.shape[-1] - width), dim=-1)
        return (qkv, z, *self.in_proj_ba(x).chunk(2, dim=-1))

    def forward(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """Shapes: x, residual [T, E] -> [T, E]"""
        qkv, z, beta, decay = self.inputs(x)
        y = self.norm(self.learned(qkv, decay, beta), z)
        return self.out_proj(self._tiled(y) if self.sizes.is_tiled else y, residual)

    def _tiled(self, y: torch.Tensor) -> torch.Tensor:
        """Return the value heads in the order of the output's columns. Shapes: [T, H V] -> same"""
        heads = y.unflatten(-1, (self.key_heads, -1, self.sizes.value_size))
        return heads.transpose(-3, -2).flatten(-3)


class JoinedDeltaMixer(DeltaMixer):
    """The mixer of checkpoints that have one matrix of all inputs: q, k, v, z, b, a."""

    def build_inputs(self, context: BuildContext, name: str) -> None:
        """Make the matrix of the layer's input. Mutates: self"""
        parts = tuple(self.parts[part] for part in (*QKVZ, *BA))
        hidden, joints = context.model.hidden_size, {QKV: {part: self.full[part] for part in QKV}}
        self.in_proj = Linear(context, f"{name}.in_proj", hidden, parts, bias=False, joints=joints)

    def inputs(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return q, k and v side by side, z, beta and decay (see DeltaMixer)."""
        heads = self.value_heads
        sizes = (sum(self._widths), heads * self.sizes.value_size, heads, heads)
        return self.in_proj(x).split(sizes, dim=-1)


class ChannelDeltaMixer(DeltaRule):
    """Kimi delta attention: each channel of a key has its own decay, computed from the layer's
    input by two matrices via D numbers. The gate after the norm, a sigmoid, is computed likewise:

    q, k, v = silu(conv1d(qkv_proj(x)));  f, g, beta = in_proj_fgb(x)   # D, D and H numbers h =
    o_proj(norm(gated_delta(q, k, v, f_b_proj(f), beta)) sigmoid(g_b_proj(g)))

    Source: Kimi Team, Kimi Linear, 2025 (arXiv 2510.26692).
    """

    def __init__(self, context: BuildContext, name: str, sizes: DeltaSizes) -> None:
        super().__init__(context, name, sizes, by_channel=True)
        hidden = context.model.hidden_size
        self.qkv_proj = Linear(
            context,
            f"{name}.qkv_proj",
            hidden,
            tuple(self.parts[part] for part in QKV),
            bias=False,
        )
        self.build_gates(context, name)
        inner = sizes.value_heads * sizes.value_size
        self.o_norm = RMSNorm(context, sizes.value_size, eps=sizes.eps)
        self._open = OutputGate(context)
        self.o_proj = RowParallelLinear(context, f"{name}.o_proj", inner, hidden)

    def build_gates(self, context: BuildContext, name: str) -> None:
        """Make the matrices of decays, gates and betas. Mutates: self"""
        sizes, small = self.sizes, self.sizes.key_size
        f, g = (Rows(name=part, full=small, local=small, start=0) for part in "fg")
        hidden, inner = context.model.hidden_size, sizes.value_heads * sizes.value_size
        self.in_proj_fgb = Linear(
            context, f"{name}.in_proj_fgb", hidden, (f, g, self.parts["b"]), bias=False
        )
        self.f_b_proj, self.g_b_proj = (
            ColumnParallelLinear(context, f"{name}.{part}_b_proj", small, inner) for part in "fg"
        )

    def gates(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return decays, gates and betas. Shapes: x [T, E] -> [T, H D], [T, H V], [T, H]"""
        small = self.sizes.key_size
        f, g, beta = self.in_proj_fgb(x).split((small, small, self.value_heads), dim=-1)
        return self.f_b_proj(f), self.g_b_proj(g), beta

    def forward(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """Shapes: x, residual [T, E] -> [T, E]"""
        decay, gate, beta = self.gates(x)
        y = self.learned(self.qkv_proj(x), decay, beta)
        normed = self.o_norm(y.reshape(-1, self.sizes.value_size)).view(y.shape)
        return self.o_proj(self._open(normed, gate), residual)


class WideDeltaMixer(ChannelDeltaMixer):
    """The same with a separate matrix for the decays, and one for the gate: f, g and beta of all
    heads. Source: Ling Team, Ling 3, 2026, as transformers has it"""

    def build_gates(self, context: BuildContext, name: str) -> None:
        """Make the matrix of decays, gates and betas. Mutates: self"""
        sizes, hidden = self.sizes, context.model.hidden_size
        group = tensor_group(context.rank)
        f = even_part("f", sizes.value_heads * sizes.key_size, group, name)
        g = even_part("g", sizes.value_heads * sizes.value_size, group, name)
        self.in_proj_fgb = Linear(
            context, f"{name}.in_proj_fgb", hidden, (f, g, self.parts["b"]), bias=False
        )

    def gates(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return decays, gates and betas (see ChannelDeltaMixer)."""
        heads = self.value_heads
        sizes = (heads * self.sizes.key_size, heads * self.sizes.value_size, heads)
        return self.in_proj_fgb(x).split(sizes, dim=-1)

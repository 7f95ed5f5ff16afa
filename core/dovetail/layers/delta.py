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
from torch import nn

from dovetail.interfaces.model import BuildContext
from dovetail.layers.dtypes import dtype_of
from dovetail.layers.linear import Linear, RowParallelLinear, even_part, split_heads
from dovetail.layers.recurrent import DividedVectors, OverRows, ShortConv, gated_norm_kernel
from dovetail.layers.state import Part, RowStates, State
from dovetail.parallel.groups import tensor_group
from dovetail_kernels import gated_delta
from dovetail_kernels.gated_delta import chunked
from dovetail_kernels.gated_delta.native import GatedDelta
from dovetail_kernels.op import Arguments

CONV, DELTA = "conv", "delta"
"""The parts of the state."""
QKVZ, QKV, BA = "qkvz", "qkv", "ba"
"""Names of joints: QKVZ and BA hold, for each key head, its rows of all that belongs to
it; QKV holds all queries, then all keys, then all values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaSizes:
    """The sizes of a mixer: `key_heads` are K, `value_heads` H, `key_size` D, `value_size` V.
    `beta_scale` is what a token enters with at most."""

    key_heads: int
    value_heads: int
    key_size: int
    value_size: int
    conv: int
    act: str = "silu"
    eps: float = 1e-6
    beta_scale: float = 1.0

    @property
    def widths(self) -> dict[str, int]:
        """Return the rows that belong to one key head, by part."""
        values = self.value_heads // self.key_heads * self.value_size
        return {"q": self.key_size, "k": self.key_size, "v": values, "z": values}


class HeadNorm(nn.Module):
    """The norm of each head, and then a gate. All heads have the same weight."""

    def __init__(self, context: BuildContext, size: int, *, eps: float) -> None:
        super().__init__()
        empty = torch.empty(size, dtype=dtype_of(context.model.dtype), device=context.device)
        self.weight = nn.Parameter(empty, requires_grad=False)
        self._run = gated_norm_kernel(context, size, eps=eps, gate_first=False)

    def forward(self, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        """Return norm(x) silu(gate). Shapes: x, gate [T, H V] -> [T, H V]"""
        return self._run(x, gate, self.weight)


class DeltaMixer(DividedVectors):
    """The mixer of one layer. Key heads are divided over ranks, with the value heads that share
    them."""

    def __init__(self, context: BuildContext, name: str, sizes: DeltaSizes) -> None:
        super().__init__()
        group, hidden = tensor_group(context.rank), context.model.hidden_size
        self.key_heads = group.share(sizes.key_heads, f"{name} key heads")
        self.value_heads, _ = split_heads(group, sizes.value_heads, sizes.key_heads, name)
        self.sizes, widths = sizes, sizes.widths
        full = {part: rows * sizes.key_heads for part, rows in widths.items()}
        q, k, v, z = (even_part(part, rows, group, name) for part, rows in full.items())
        b, a = (even_part(part, sizes.value_heads, group, name) for part in "ba")
        joined = {part: full[part] for part in QKV}
        self.in_proj_qkvz = Linear(
            context,
            f"{name}.in_proj_qkvz",
            hidden,
            (q, k, v, z),
            bias=False,
            joints={QKVZ: widths, QKV: joined},
        )
        of_key = sizes.value_heads // sizes.key_heads
        self.in_proj_ba = Linear(
            context,
            f"{name}.in_proj_ba",
            hidden,
            (b, a),
            bias=False,
            joints={BA: dict.fromkeys(BA, of_key)},
        )
        self.conv1d = ShortConv(context, (q, k, v), sizes.conv, bias=False, act=sizes.act)
        for leaf in ("A_log", "dt_bias"):
            self.add_vector(context, leaf, (b,), dtype=torch.float32)
        self.norm = HeadNorm(context, sizes.value_size, eps=sizes.eps)
        inner = sizes.value_heads * sizes.value_size
        self.out_proj = RowParallelLinear(context, f"{name}.out_proj", inner, hidden)
        kept = Part(name=DELTA, shape=(self.value_heads, sizes.key_size, sizes.value_size))
        self.state = State(name, (self.conv1d.state_part(CONV), kept))
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
            "dt_bias": bias,
            "scale": self.sizes.key_size**-0.5,
            "beta_scale": self.sizes.beta_scale,
        }

    def forward(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """Shapes: x, residual [T, E] -> [T, E]"""
        parts, rows = self.state.step()
        width = sum(self._widths)
        both = self.in_proj_qkvz(x)
        qkv, z = both.split((width, both.shape[-1] - width), dim=-1)
        qkv = self.conv1d(qkv, parts[CONV], rows)
        y = self._learned(qkv, self.in_proj_ba(x), parts[DELTA], rows)
        return self.out_proj(self.norm(y.flatten(-2), z), residual)

    def _learned(
        self, qkv: torch.Tensor, ba: torch.Tensor, state: torch.Tensor, rows: RowStates
    ) -> torch.Tensor:
        """Return what the delta rule gives. Shapes: qkv [T, C], ba [T, 2 H], state [N, H, D, V] ->
        [T, H, V]. Mutates: state"""
        counts = (self.key_heads, self.key_heads, self.value_heads)
        q, k, v = (
            part.unflatten(-1, (count, -1))
            for part, count in zip(qkv.split(self._widths, dim=-1), counts, strict=True)
        )
        beta, decay = ba.chunk(2, dim=-1)
        return self._delta(state, rows, q=q, k=k, v=v, decay_in=decay, beta_in=beta)

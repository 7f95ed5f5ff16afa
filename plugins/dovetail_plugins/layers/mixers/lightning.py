"""Lightning attention: attention without a softmax over a past that decays, a matrix for each head.

For the T tokens of a step (H heads of D numbers, slope s of each head):

    q, k, v = act(qkv_proj(x))                           # [T, H D] each
    S = exp(-s) S + k (outer) v, y = q S                 # for each head and token
    h = out_proj(sigmoid(output_gate(x)) * norm(y))      # normed over all heads

Source: Qin et al., Lightning Attention-2, 2024 (arXiv 2401.04658), as MiniMax-01 has it (arXiv
2501.08313).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from dovetail.interfaces.model import BuildContext
from dovetail.layers.attention.rotary import Rope
from dovetail.layers.linear import (
    ColumnParallelLinear,
    MergedActivatedLinear,
    RowParallelLinear,
    even_part,
)
from dovetail.layers.state import Part, RowStates, State
from dovetail.parallel.groups import tensor_group
from dovetail_kernels import ssd
from dovetail_kernels.op import Arguments
from dovetail_kernels.ssd import chunked
from dovetail_kernels.ssd.native import NO_LIMIT, Ssd
from dovetail_plugins.layers.attention.head_norm import WholeRMSNorm
from dovetail_plugins.layers.attention.output_gate import OutputGate
from dovetail_plugins.layers.mixers.recurrent import OverRows

STATE = "lightning"
"""The part of the state."""
BY_HEAD = "qkv_by_head"
"""Names a checkpoint tensor that has, for each head, its query, key and value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LightningSizes:
    """The sizes of a layer, and the `slopes` of all ranks' heads."""

    heads: int
    head: int
    slopes: tuple[float, ...]
    act: str = "silu"
    eps: float = 1e-6


def lightning_slopes(heads: int, layer: int, num_layers: int) -> tuple[float, ...]:
    """Return how fast the heads of a layer forget: as fast as ALiBi's slopes say in the first one,
    hardly in the last."""
    share = 1 - layer / (num_layers - 1 + 1e-5) + 1e-5
    return tuple(2 ** (-8 * (head + 1) / heads) * share for head in range(heads))


class LightningAttention(nn.Module):
    """Lightning attention with an output gate. Heads are divided over ranks."""

    def __init__(self, context: BuildContext, name: str, sizes: LightningSizes) -> None:
        super().__init__()
        group, hidden = tensor_group(context.rank), context.model.hidden_size
        self.sizes, inner = sizes, sizes.heads * sizes.head
        self.heads = group.share(sizes.heads, f"{name} heads")
        q, k, v = (even_part(part, inner, group, name) for part in "qkv")
        self.qkv_proj = MergedActivatedLinear(
            context,
            f"{name}.qkv_proj",
            hidden,
            (q, k, v),
            joints={BY_HEAD: dict.fromkeys("qkv", sizes.head)},
            act=sizes.act,
        )
        self.output_gate = ColumnParallelLinear(context, f"{name}.output_gate", hidden, inner)
        self.out_proj = RowParallelLinear(context, f"{name}.out_proj", inner, hidden)
        self.norm = WholeRMSNorm(context, q, sizes.head, eps=sizes.eps)
        self._open = OutputGate(context)
        state_part = Part(name=STATE, shape=(self.heads, sizes.head, sizes.head))
        self.state = State(name, (state_part,))
        first = group.rank * self.heads
        own = torch.tensor(sizes.slopes[first : first + self.heads], device=context.device)
        self.register_buffer("decay", -own.float(), persistent=False)
        self._ssd = OverRows(ssd.OP, context, Ssd, self._bound, plain=chunked.run)
        self._ssd.finish()

    def _bound(self) -> Arguments:
        """Return the arguments of the recurrence that are this layer's."""
        return {"a": self.get_buffer("decay"), "d": None, "dt_bias": None, "dt_limit": NO_LIMIT}

    def forward(
        self, x: torch.Tensor, rope: Rope | None, residual: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Shapes: x, residual [T, E] -> [T, E]. Nothing is rotated."""
        parts, rows = self.state.step()
        y = self.norm(self._summed(self.qkv_proj(x), parts[STATE], rows).flatten(-2))
        return self.out_proj(self._open(y, self.output_gate(x)), residual)

    def _summed(self, qkv: torch.Tensor, state: torch.Tensor, rows: RowStates) -> torch.Tensor:
        """Return q S. Shapes: qkv [T, 3 H D], state [N, H, D, D] -> [T, H, D]. Mutates: state"""
        q, k, v = qkv.unflatten(-1, (3, self.heads, self.sizes.head)).unbind(1)
        return self._ssd(state, rows, x=v, dt=None, b=k, c=q)

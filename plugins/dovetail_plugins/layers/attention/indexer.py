"""Indexer: scores the tokens before a query, so that attention reads only the best ones.

With x a token's input and c_q the latent of its query, of H small heads of D numbers that share a
key:

    q = wq_b c_q,  k = norm(wk x),  w = weights_proj x / sqrt(H D)
    score of token s for query t: sum over h of w_th relu(q_th . k_s)

The first or last R numbers of q and k are turned by their positions. Every rank has all heads, so
that all pick the same.
Source: DeepSeek-AI, DeepSeek-V3.2, 2025, arXiv 2512.02556, section 2.1.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from dovetail.interfaces.attention import IndexSpec
from dovetail.interfaces.model import BuildContext
from dovetail.layers.attention.rotary import Rope, apply_rotary
from dovetail.layers.dtypes import dtype_of
from dovetail.layers.linear import ReplicatedLinear
from dovetail.layers.native import runs_natively
from dovetail.layers.norm import LayerNorm
from dovetail.layers.opaque import is_traced
from dovetail_kernels import qk_rotary
from dovetail_kernels.qk_rotary.native import QkRotary


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexerConfig:
    """The sizes of an indexer: H and D, how many tokens a query picks, c_q's numbers.
    `is_interleaved`: turned pairs are neighbours. `turned_last`: how many numbers at a head's end
    are turned, 0 if the first ones are. `norm_eps` is that of the keys' norm."""

    num_heads: int
    head_size: int
    num_picked: int
    query_rank: int
    is_interleaved: bool = False
    turned_last: int = 0
    norm_eps: float = 1e-6

    @property
    def spec(self) -> IndexSpec:
        """Return its description for a backend."""
        return IndexSpec(
            num_heads=self.num_heads, head_size=self.head_size, num_picked=self.num_picked
        )


class Indexer(nn.Module):
    """The parameters of one layer's indexer. `plain` is a context without quantized weights: the
    head-weight matrix is never quantized, and it computes in this context's type."""

    def __init__(
        self, context: BuildContext, plain: BuildContext, name: str, config: IndexerConfig
    ) -> None:
        super().__init__()
        hidden, size = context.model.hidden_size, config.head_size
        self.config = config
        self.wq_b = ReplicatedLinear(
            context, f"{name}.wq_b", config.query_rank, config.num_heads * size
        )
        self.wk = ReplicatedLinear(context, f"{name}.wk", hidden, size)
        self.k_norm = LayerNorm(context, size, eps=config.norm_eps)
        self.weights_proj = ReplicatedLinear(
            plain, f"{name}.weights_proj", hidden, config.num_heads
        )
        self._weighs_in = dtype_of(plain.model.dtype)
        self._scale = (config.num_heads * size) ** -0.5
        self._first = config.head_size - config.turned_last if config.turned_last else 0
        self._turn: QkRotary | None = None
        if runs_natively(qk_rotary.OP, context):
            self._turn = QkRotary(config.num_heads, 0, size, is_interleaved=config.is_interleaved)
            self._turn_key = QkRotary(1, 0, size, is_interleaved=config.is_interleaved)

    def forward(
        self, x: torch.Tensor, query_latent: torch.Tensor, rope: Rope
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return queries, the weights of their heads, and keys.

        Shapes: x [T, E], query_latent [T, Q] -> [T, H D], [T, H] float32, [T, D]
        """
        q, keys = self.wq_b(query_latent), self.k_norm(self.wk(x))
        weights = self.weights_proj(x.to(self._weighs_in)).float() * self._scale
        if self._turn is not None and not is_traced():
            table = (rope.cos, rope.sin, rope.positions)
            self._turn(q[:, self._first :], *table)
            self._turn_key(keys[:, self._first :], *table)
            return q, weights, keys
        return self._turned(q, rope), weights, self._turned(keys, rope)

    def _turned(self, x: torch.Tensor, rope: Rope) -> torch.Tensor:
        """Return heads with their part turned. Shapes: x [T, H D] -> [T, H D]"""
        pairs, size = self.config.is_interleaved, self.config.head_size
        if not self._first:
            return apply_rotary(x, rope, size, is_interleaved=pairs)
        rest, last = x.unflatten(-1, (-1, size)).tensor_split((self._first,), dim=-1)
        turned = apply_rotary(last.flatten(-2), rope, size - self._first, is_interleaved=pairs)
        return torch.cat([rest, turned.view_as(last)], dim=-1).flatten(-2)

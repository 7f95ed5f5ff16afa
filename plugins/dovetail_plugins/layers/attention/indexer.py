"""Indexer: scores the tokens before a query, so that attention reads only the best ones.

With x a token's input and c_q the latent of its query, of H small heads of D numbers that share a
key:

    q = wq_b c_q,  k = norm(wk x),  w = weights_proj x / sqrt(H D)
    score of token s for query t: sum over h of w_th relu(q_th . k_s)

The first R numbers of q and k are turned by their positions. Every rank has all heads, so that all
pick the same.
Source: DeepSeek-AI, DeepSeek-V3.2, 2025, arXiv 2512.02556, section 2.1.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from dovetail.interfaces.attention import IndexSpec
from dovetail.interfaces.model import BuildContext
from dovetail.layers.attention.rotary import Rope, apply_rotary
from dovetail.layers.linear import ReplicatedLinear
from dovetail.layers.native import runs_natively
from dovetail.layers.norm import LayerNorm
from dovetail.layers.opaque import is_traced
from dovetail_kernels import qk_rotary
from dovetail_kernels.qk_rotary.native import QkRotary


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexerConfig:
    """The sizes of an indexer: H and D, how many tokens a query picks, c_q's numbers.
    `is_interleaved`: turned pairs are neighbours."""

    num_heads: int
    head_size: int
    num_picked: int
    query_rank: int
    is_interleaved: bool = False

    @property
    def spec(self) -> IndexSpec:
        """Return its description for a backend."""
        return IndexSpec(
            num_heads=self.num_heads, head_size=self.head_size, num_picked=self.num_picked
        )


class Indexer(nn.Module):
    """The parameters of one layer's indexer. `plain` is a context without quantized weights: the
    head-weight matrix is never quantized."""

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
        self.k_norm = LayerNorm(context, size, eps=1e-6)
        self.weights_proj = ReplicatedLinear(
            plain, f"{name}.weights_proj", hidden, config.num_heads
        )
        self._scale = (config.num_heads * size) ** -0.5
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
        weights = self.weights_proj(x).float() * self._scale
        if self._turn is not None and not is_traced():
            table = (rope.cos, rope.sin, rope.positions)
            self._turn(q, *table)
            self._turn_key(keys, *table)
            return q, weights, keys
        size, pairs = self.config.head_size, self.config.is_interleaved
        q = apply_rotary(q, rope, size, is_interleaved=pairs)
        return q, weights, apply_rotary(keys, rope, size, is_interleaved=pairs)

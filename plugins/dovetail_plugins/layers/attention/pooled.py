"""Sparse latent attention to pools: a query attends to the pools of B tokens that an indexer picks,
and to the tokens after the last whole pool.

With x a token's input and c_q the latent of its query:

    q = wq_b c_q,  k = norm(wk x),  g = pool_gate x,  w = weights_proj x / sqrt(H D)
    key of a pool: sum over its tokens s of softmax_s(g_s + pool_bias_s) k_s      # by channel
    score of a pool for query t: sum over h of w_th relu(q_th . key)

Nothing is turned by positions. A token's k and g are cached, and a step makes the pools' keys of
them. As long as all pools of a step's rows are picked, attention is dense. Beyond, attention takes
the tokens of the picked pools; queries with as many tokens after their last pool are one call.
Source: Z.ai, GLM-5.3-Flash, 2026, as transformers has it.
"""

from __future__ import annotations

import torch
from torch import nn

from dovetail.interfaces.model import BuildContext
from dovetail.layers.attention.latent import LatentConfig
from dovetail.layers.attention.latent_rows import write_latents
from dovetail.layers.attention.rotary import Rope
from dovetail.layers.context import forward_context
from dovetail.layers.dtypes import dtype_of
from dovetail.layers.linear import ReplicatedLinear
from dovetail.layers.norm import LayerNorm
from dovetail_kernels.cpu.program import refuse_recording
from dovetail_plugins.layers.attention.indexed import PICKS, IndexedAttention
from dovetail_plugins.layers.attention.picked_pools import PickedCall, PoolPicker, PoolsConfig

KEYS_EPS = 1e-6
"""Of the norm of keys; no config.json says it."""


class PoolIndexer(nn.Module):
    """The parameters of one layer's indexer. `plain` is a context without quantized weights."""

    def __init__(
        self, context: BuildContext, plain: BuildContext, name: str, config: PoolsConfig
    ) -> None:
        super().__init__()
        hidden, size = context.model.hidden_size, config.head_size
        self.config = config
        width = config.num_heads * size
        self.wq_b = ReplicatedLinear(context, f"{name}.wq_b", config.query_rank, width)
        self.wk = ReplicatedLinear(context, f"{name}.wk", hidden, size)
        self.k_norm = LayerNorm(context, size, eps=KEYS_EPS)
        self.weights_proj = ReplicatedLinear(
            plain, f"{name}.weights_proj", hidden, config.num_heads
        )
        self.pool_gate = ReplicatedLinear(plain, f"{name}.index_kpool_compress_gate", hidden, size)
        empty = torch.empty(
            config.pool_size, size, dtype=dtype_of(context.model.dtype), device=context.device
        )
        self.pool_bias = nn.Parameter(empty, requires_grad=False)
        self._scale = (config.num_heads * size) ** -0.5

    def forward(
        self, x: torch.Tensor, query_latent: torch.Tensor, rope: Rope
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return queries, the weights of their heads, and keys with gates behind them.

        Shapes: x [T, E], query_latent [T, Q] -> [T, H D], [T, H] float32, [T, 2 D]
        """
        del rope
        keys = torch.cat([self.k_norm(self.wk(x)), self.pool_gate(x)], dim=-1)
        return self.wq_b(query_latent), self.weights_proj(x).float() * self._scale, keys

    def pooled(self, states: torch.Tensor) -> torch.Tensor:
        """Return the keys of whole pools. Shapes: states [S, 2 D] -> [S // B, D]"""
        size = self.config.pool_size
        whole = states[: len(states) // size * size].unflatten(0, (-1, size))
        keys, gates = whole.chunk(2, dim=-1)
        shares = (gates.float() + self.pool_bias.float()).softmax(dim=1).to(keys.dtype)
        return (shares * keys).sum(dim=1)


class PooledAttention(IndexedAttention):
    """The attention of one layer, without rotation. A layer without an indexer takes the picks of
    the last one that has one."""

    def __init__(
        self,
        context: BuildContext,
        name: str,
        config: LatentConfig,
        pools: PoolsConfig,
        indexer: PoolIndexer | None,
    ) -> None:
        self.picker = PoolPicker(pools)
        super().__init__(context, name, config, self.picker.spec, indexer)

    @property
    def index_size(self) -> int:
        """Return the numbers of a token's key and gate, 0 without an indexer."""
        return 2 * super().index_size

    def _turns_of(self, context: BuildContext) -> None:
        return None

    def _turned(
        self, q: torch.Tensor, latent: torch.Tensor, rope: Rope
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return queries as they are, and latents normed. Shapes: latent [T, L]"""
        return q, self.kv_a_layernorm(latent)

    def _attend(
        self,
        q: torch.Tensor,
        latent: torch.Tensor,
        index_q: torch.Tensor | None = None,
        weights: torch.Tensor | None = None,
        keys: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Shapes: q [T, H N], latent [T, L]; of the indexer index_q [T, H D], weights [T, H], keys
        [T, 2 D] -> [T, H V]"""
        refuse_recording("whether an indexer picks depends on how long rows are")
        context = forward_context()
        layout = context.backend.layout_of(context.prepared[self.name])
        if keys is not None:
            write_latents(keys, self._index_keys(), layout.slots)
        if layout.max_seq_tokens < self.picker.min_tokens:
            return self._attended(q, latent)
        place = (PICKS, context.first_token)
        if index_q is not None and weights is not None:
            assert isinstance(self.indexer, PoolIndexer)
            context.once[place] = self.picker.calls(
                context, layout, self._index_keys(), self.indexer.pooled, index_q, weights
            )
        write_latents(latent, self._cache(), layout.slots)  # calls may read each other's tokens
        heads = q.unflatten(-1, (self.spec.num_heads, self.head_size))
        out = q.new_empty(len(q), self.spec.num_heads, self.config.value_size)
        calls: list[PickedCall] = context.once[place]
        for call in calls:
            own = call.tokens
            out[own] = self._absorbed(heads[own], latent[own], call.prepared, call.picks)
        return out.flatten(-2)

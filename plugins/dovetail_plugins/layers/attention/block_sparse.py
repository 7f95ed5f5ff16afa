"""Block-sparse attention: each kv head of a query attends to the blocks of tokens that an indexer
picks for it, and to no others.

With x a token's input, of as many small heads as there are kv heads, which share a key:

    q = norm(q_proj x),  k = norm(k_proj x)              # both rotated like the layer's own heads
    score of a block for query t: max over its tokens s of q_th . k_s

As long as a step's rows have no more blocks than a query picks, all are picked, and attention is
dense. Beyond that, every token of the step is a row of its own, whose cache blocks are those of the
picked blocks: keys are rotated already, so their order is all that a causal mask needs. Each kv
head therefore has its own cache; its heads are those of one layer with one kv head. The keys of the
indexer have blocks of the same size, and leave a part of it unused.
Source: MiniMax, MiniMax-M3, 2026, as transformers has it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import nn

from dovetail.errors import ConfigError
from dovetail.interfaces.attention import AttentionCall, AttentionSpec, BatchLayout
from dovetail.interfaces.data.spec import RunSpec
from dovetail.interfaces.data.step import LatentLayer
from dovetail.interfaces.model import BuildContext
from dovetail.layers.attention import Attention
from dovetail.layers.attention.latent_rows import write_latents
from dovetail.layers.attention.rotary import Rope, apply_rotary
from dovetail.layers.context import ForwardContext, forward_context
from dovetail.layers.decoder import DecoderConfig
from dovetail.layers.kept import CachingLayer
from dovetail.layers.linear import ReplicatedLinear
from dovetail.layers.opaque import CompilerBoundary
from dovetail.parallel.groups import tensor_group
from dovetail_kernels.block_picks import OP
from dovetail_kernels.cpu.program import refuse_recording
from dovetail_plugins.layers.attention.token_rows import alone_rows, tokens_of


@dataclass(frozen=True, slots=True, kw_only=True)
class BlocksConfig:
    """The sizes of an indexer: D numbers a head, blocks of B tokens, of which a query's head picks
    K, the last `num_local` among them."""

    head_size: int
    block_size: int
    num_picked: int
    num_local: int


class BlockIndexer(CachingLayer):
    """The parameters of one layer's indexer, on every rank those of all heads. `name` names its
    keys in the cache."""

    def __init__(
        self, context: BuildContext, name: str, config: BlocksConfig, norms: DecoderConfig
    ) -> None:
        super().__init__(name)
        model, size = context.model, config.head_size
        self.config = config
        self.wq = ReplicatedLinear(
            context, f"{name}.q_proj", model.hidden_size, model.num_kv_heads * size
        )
        self.wk = ReplicatedLinear(context, f"{name}.k_proj", model.hidden_size, size)
        self.q_norm = norms.norm(context, size, eps=norms.norm_eps)
        self.k_norm = norms.norm(context, size, eps=norms.norm_eps)
        group = tensor_group(context.rank)
        self._start = group.rank * model.num_kv_heads // group.size
        self._pick = OP.pick(context.device, torch.float32)

    def kept(self, run: RunSpec) -> LatentLayer:
        """Return the cached keys, in the model's type. Raises: ConfigError for blocks of the cache
        that do not divide the indexer's."""
        if self.config.block_size % run.block_tokens:
            raise ConfigError(
                f"attention picks blocks of {self.config.block_size} tokens, and a block of the "
                f"cache has {run.block_tokens}.",
                where="--block-size",
                fix=f"use a divisor of {self.config.block_size}.",
            )
        return LatentLayer(name=self.name, size=self.config.head_size, dtype=run.model.dtype)

    def forward(self, x: torch.Tensor, rope: Rope) -> tuple[torch.Tensor, torch.Tensor]:
        """Return queries and keys. Shapes: x [T, E] -> [T, K D] of all kv heads, [T, D]"""
        size = self.config.head_size
        q = self.q_norm(self.wq(x).unflatten(-1, (-1, size))).flatten(-2)
        keys = self.k_norm(self.wk(x))
        return apply_rotary(q, rope, size), apply_rotary(keys, rope, size)

    def picks(
        self, q: torch.Tensor, keys: torch.Tensor, layout: BatchLayout, num_heads: int
    ) -> torch.Tensor | None:
        """Store a step's keys; return the blocks that the rank's `num_heads` pick, None if all.
        Shapes: q [T, K D], keys [T, D] -> [T, num_heads, num_picked]. Mutates: the cache"""
        config = self.config
        cache = forward_context().caches[self.name]
        assert isinstance(cache, torch.Tensor)
        write_latents(keys, cache, layout.slots)
        if layout.max_seq_tokens <= config.num_picked * config.block_size:
            return None
        own = q.unflatten(-1, (-1, config.head_size))[:, self._start : self._start + num_heads]
        rows = (layout.block_table, layout.query_start, layout.seq_lens)
        found: torch.Tensor = self._pick(
            own.float(), cache, *rows, config.block_size, config.num_picked, config.num_local
        )
        return found


class HeadsApart(nn.Module):
    """The attention of one layer with a cache for each kv head."""

    def __init__(self, name: str, spec: AttentionSpec) -> None:
        super().__init__()
        count = spec.num_kv_heads
        one = replace(spec, num_heads=spec.num_heads // count, num_kv_heads=1)
        self.heads = nn.ModuleList(Attention(f"{name}.heads.{i}", one) for i in range(count))
        self._first = f"{name}.heads.0"
        self._width = spec.num_heads * spec.head_size
        self._size = spec.head_size
        self._opaque = CompilerBoundary(self._attend)
        self.indexer: BlockIndexer | None = None

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        index_q: torch.Tensor | None = None,
        keys: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the attended values; `index_q` and `keys` are the indexer's.

        Shapes: q [T, H*D], k and v [T, K*D] -> [T, H*D]
        """
        return self._opaque(q, k, v, index_q, keys, size=self._width)

    def _attend(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        index_q: torch.Tensor | None,
        keys: torch.Tensor | None,
    ) -> torch.Tensor:
        context = forward_context()
        prepared = context.prepared[self._first]
        blocks = None
        if self.indexer is not None and index_q is not None and keys is not None:
            refuse_recording("whether blocks are picked depends on how long rows are")
            layout = context.backend.layout_of(prepared)
            blocks = self.indexer.picks(index_q, keys, layout, len(self.heads))
        parts = (x.unflatten(-1, (-1, self._size)).chunk(len(self.heads), dim=1) for x in (q, k, v))
        found = []
        for head, (layer, *own) in enumerate(zip(self.heads, *parts, strict=True)):
            step = prepared
            if blocks is not None and self.indexer is not None:
                picked = _picked(context, prepared, blocks[:, head], self.indexer.config)
                step = context.backend.prepare(picked)
            found.append(_attended(context, layer, own, step))
        return torch.cat(found, dim=1).flatten(-2)


def _attended(
    context: ForwardContext, layer: Attention, own: list[torch.Tensor], prepared: object
) -> torch.Tensor:
    """Return the attention of one kv head's queries. Shapes: own [T, H, D], [T, 1, D] twice ->
    [T, H, D]"""
    cache = context.caches[layer.name]
    assert isinstance(cache, torch.Tensor)
    q, k, v = own
    call = AttentionCall(spec=layer.spec, q=q, k=k, v=v, cache=cache, prepared=prepared)
    return context.backend.forward(call)


def _picked(
    context: ForwardContext, prepared: object, blocks: torch.Tensor, config: BlocksConfig
) -> BatchLayout:
    """Return the layout in which each token is a row with the cache of its picked blocks.
    Shapes: blocks [T, K]"""
    key = (HeadsApart, id(prepared))
    if key not in context.once:
        context.once[key] = _alone(context.backend.layout_of(prepared), config)
    alone: BatchLayout = context.once[key]
    table, each = alone.block_table, config.block_size // alone.block_tokens
    at = blocks.clamp(min=0).long().unsqueeze(-1) * each
    at = (at + torch.arange(each, device=at.device)).flatten(1)
    at = at.clamp_(max=table.shape[1] - 1)  # of a last block that is not full
    return replace(alone, block_table=table.gather(1, at))


def _alone(layout: BatchLayout, config: BlocksConfig) -> BatchLayout:
    """Return a layout in which each token is a row, with the block table of its real row still."""
    rows, counts = tokens_of(layout)
    tokens = torch.arange(len(rows), device=layout.slots.device)
    return alone_rows(layout, tokens, rows, [_seen(count - 1, config) for count in counts])


def _seen(position: int, config: BlocksConfig) -> int:
    """Return how many tokens a query attends to: its own block, which is always picked, up to
    itself, and whole ones before."""
    size = config.block_size
    return (min(position // size + 1, config.num_picked) - 1) * size + position % size + 1

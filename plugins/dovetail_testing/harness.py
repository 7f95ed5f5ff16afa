"""PagedModel: a model over a small paged cache, driven by hand: rows in, logits of every token out.

For tests that compare a model with something else in prefill, decode, chunks and mixed batches.
Blocks are handed out in a scattered order so that a layout mistake shows.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TypeVar, cast

import torch
from torch import nn

from dovetail import registry
from dovetail.config.checkpoint.hf import load_model_facts
from dovetail.config.rules.selections import stored_quantization
from dovetail.interfaces.attention import AttentionBackend, BatchLayout
from dovetail.interfaces.data.spec import ModelSpec, RankSpec
from dovetail.interfaces.load_format import Checkpoint, LoadFormat
from dovetail.interfaces.model import BuildContext, Model
from dovetail.interfaces.plugin import Plugin
from dovetail.interfaces.quantization import QuantMethod
from dovetail.layers.attention import Attention
from dovetail.layers.attention.latent import LatentAttention
from dovetail.layers.context import INDEX_KEYS, LATENTS, ForwardContext, LayerCache, use_context
from dovetail.layers.kept import CachingLayer
from dovetail.layers.stages import stage_of
from dovetail.layers.state import RowStates, State
from dovetail.layers.weights import load_weights
from dovetail_plugins.layers.attention.block_sparse import BlockIndexer
from dovetail_plugins.layers.attention.compressed import CompressedAttention
from dovetail_plugins.layers.attention.compressor import Entries
from dovetail_plugins.layers.attention.indexed import IndexedAttention
from dovetail_plugins.layers.attention.pooled_heads import CachedHead
from dovetail_plugins.layers.attention.relative import RelativeAttention
from dovetail_plugins.layers.stored.rounding import FLOAT, ActivationOptions
from dovetail_testing.reference import ReferenceAttention

P = TypeVar("P", bound=Plugin)

UNUSED = 1e3
"""What unused cache cells hold: finite, but no attention over it would go unnoticed."""


@dataclass(slots=True, kw_only=True)
class Row:
    """One row: its tokens so far (a model may look at them) and its blocks."""

    num_prompt_tokens: int
    token_ids: list[int] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    start: int = 0
    num_tokens: int = 0


class PagedModel:
    """A model with cache tensors for `num_blocks` blocks of `block_tokens` tokens."""

    def __init__(
        self,
        model: nn.Module,
        *,
        backend: AttentionBackend | None = None,
        block_tokens: int = 4,
        num_blocks: int = 96,
    ) -> None:
        self.module = model
        self.backend = backend or ReferenceAttention()
        self.block_tokens = block_tokens
        # Block 0 stays unused: it is what unused entries of a block table point to.
        self._free = list(range(1, num_blocks))
        random.Random(0).shuffle(self._free)
        self.rows: dict[int, Row] = {}
        self.layers = [module for module in model.modules() if isinstance(module, CachingLayer)]
        # Layers that share a cache have its name; the module that holds it comes after them.
        self.caches = {layer.name: self._cache(layer, num_blocks) for layer in self.layers}

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        model_name: str | None = None,
        backend: str | None = None,
        dtype: str = "float32",
    ) -> Self:
        """Return the model of a checkpoint folder, built by the plugins of these names."""
        chosen = None
        if backend:
            chosen = load_plugin(AttentionBackend, "attention_backend", backend)  # type: ignore[type-abstract]
        return cls(load_model(path, model_name=model_name, dtype=dtype), backend=chosen)

    def cached_names(self) -> set[str]:
        """Return the names of what layers cache: of its parts where several layers share a
        cache."""
        shared = [layer for layer in self.layers if isinstance(layer, Entries)]
        alone = {layer.name for layer in self.layers} - {layer.name for layer in shared}
        return alone | {part.name for layer in shared for part in layer.parts}

    def _cache(self, layer: CachingLayer, num_blocks: int) -> LayerCache:
        """Return memory for what a layer keeps in so many blocks."""
        if isinstance(layer, State):
            parts = {part.name: (num_blocks, *part.shape) for part in layer.parts}
            return {name: torch.full(shape, UNUSED) for name, shape in parts.items()}
        size = (num_blocks, self.block_tokens)
        if isinstance(layer, BlockIndexer):
            return torch.full((*size, layer.config.head_size), UNUSED)
        if isinstance(layer, Entries):
            cells = {part.name: self.block_tokens // part.tokens for part in layer.parts}
            return {
                p.name: torch.full((num_blocks, cells[p.name], p.size), UNUSED) for p in layer.parts
            }
        if isinstance(layer, CompressedAttention):
            widths = {LATENTS: layer.config.head_size, INDEX_KEYS: layer.input_size}
            found = {name: torch.full((*size, width), UNUSED) for name, width in widths.items()}
            return found if layer.input_size else found[LATENTS]
        if isinstance(layer, RelativeAttention):
            return torch.full((*size, layer.size), UNUSED)
        if isinstance(layer, CachedHead):
            latents = torch.full((*size, layer.size), UNUSED)
            keys = torch.full((*size, layer.index_size), UNUSED)
            return {LATENTS: latents, INDEX_KEYS: keys} if layer.index_size else latents
        if isinstance(layer, LatentAttention):
            latents = torch.full((*size, layer.spec.size), UNUSED)
            if not isinstance(layer, IndexedAttention) or layer.indexer is None:
                return latents
            keys = torch.full((*size, layer.index_size), UNUSED)
            return {LATENTS: latents, INDEX_KEYS: keys}
        assert isinstance(layer, Attention)
        spec = layer.spec
        return torch.full(self.backend.kv_shape(*size, spec.num_kv_heads, spec.head_size), UNUSED)

    @torch.inference_mode()
    def forward(self, batch: Sequence[tuple[int, Sequence[int]]]) -> list[torch.Tensor]:
        """Return the logits of all given tokens, one tensor [tokens, V] per (row, tokens) pair.

        Rows come into being when first named; each pair's tokens follow those before.
        """
        hidden = self.hidden(batch)
        logits = cast(Model, self.module).logits(hidden)
        return list(torch.split(logits, [len(tokens) for _, tokens in batch]))

    @torch.inference_mode()
    def hidden(self, batch: Sequence[tuple[int, Sequence[int]]]) -> torch.Tensor:
        """Return what the model makes of all given tokens. Shapes: [tokens, E]"""
        rows = [self._extend(number, tokens) for number, tokens in batch]
        layout = self._layout(rows)
        token_ids = torch.tensor([t for row in rows for t in row.token_ids[row.start :]])
        positions = torch.cat([torch.arange(r.start, len(r.token_ids)) for r in rows])
        prepared = self.backend.prepare(layout)
        context = ForwardContext(
            backend=self.backend,
            prepared={
                layer.name: RowStates(layout) if isinstance(layer, State) else prepared
                for layer in self.layers
            },
            caches=self.caches,
            rows=rows,
        )
        with use_context(context):
            return cast(Model, self.module).forward(token_ids, positions)

    def share(self, source: int, row: int, num_tokens: int) -> None:
        """Start `row` with the first `num_tokens` (full blocks) of another: a prefix hit."""
        assert num_tokens % self.block_tokens == 0, "only full blocks are shared"
        given = self.rows[source]
        self.rows[row] = Row(
            num_prompt_tokens=num_tokens,
            token_ids=given.token_ids[:num_tokens],
            blocks=given.blocks[: num_tokens // self.block_tokens],
        )

    def free(self, row: int) -> None:
        """Forget a row; blocks that no other row holds are spoiled and may be used again."""
        row_state = self.rows.pop(row)
        shared_blocks = {block for other in self.rows.values() for block in other.blocks}
        freed = [block for block in row_state.blocks if block not in shared_blocks]
        for cache in self.caches.values():
            if isinstance(cache, dict):
                for part in cache.values():
                    part[freed] = UNUSED
            elif cache.dim() == 3:  # latents
                cache[freed] = UNUSED
            else:
                cache.view(cache.shape[0], cache.shape[1], -1)[:, freed] = UNUSED
        self._free.extend(freed)

    def _extend(self, number: int, tokens: Sequence[int]) -> Row:
        row = self.rows.setdefault(number, Row(num_prompt_tokens=len(tokens)))
        row.start, row.num_tokens = len(row.token_ids), len(tokens)
        row.token_ids.extend(tokens)
        while len(row.blocks) * self.block_tokens < len(row.token_ids):
            row.blocks.append(self._free.pop())
        return row

    def _layout(self, rows: Sequence[Row]) -> BatchLayout:
        """Return the batch as attention backends see it."""
        starts = [0]
        for row in rows:
            starts.append(starts[-1] + row.num_tokens)
        lengths = [len(row.token_ids) for row in rows]
        table = torch.zeros(len(rows), max(len(row.blocks) for row in rows), dtype=torch.int32)
        slots = []
        for i, row in enumerate(rows):
            table[i, : len(row.blocks)] = torch.tensor(row.blocks, dtype=torch.int32)
            for position in range(row.start, len(row.token_ids)):
                block = row.blocks[position // self.block_tokens]
                slots.append(block * self.block_tokens + position % self.block_tokens)
        return BatchLayout(
            query_start=torch.tensor(starts, dtype=torch.int32),
            seq_lens=torch.tensor(lengths, dtype=torch.int32),
            block_table=table,
            slots=torch.tensor(slots, dtype=torch.int64),
            query_start_host=starts,
            seq_lens_host=lengths,
            block_tokens=self.block_tokens,
            max_query_tokens=max(row.num_tokens for row in rows),
            max_seq_tokens=max(lengths),
        )


class StagedModel:
    """The stages of a pipeline in one process. `loaded` makes the module of each RankSpec;
    `stage_layers` are the numbers of layers."""

    def __init__(
        self, loaded: Callable[[RankSpec], nn.Module], stage_layers: Sequence[int]
    ) -> None:
        size = len(stage_layers)
        ranks = [
            RankSpec(
                rank=number,
                world_size=size,
                stage=number,
                num_stages=size,
                stage_layers=tuple(stage_layers),
            )
            for number in range(size)
        ]
        self.stages = [PagedModel(loaded(rank)) for rank in ranks]

    @torch.inference_mode()
    def forward(self, batch: Sequence[tuple[int, Sequence[int]]]) -> list[torch.Tensor]:
        """Return the logits of all given tokens (see PagedModel.forward)."""
        *others, last = self.stages
        for number, stage in enumerate(others):
            following = stage_of(self.stages[number + 1].module)
            assert following is not None, "the model has no Stage"
            following.inbox = stage.hidden(batch)
        return last.forward(batch)


def load_plugin(interface: type[P], kind: str, spec: str | None, *args: Any) -> P:
    """Return an object of a registered plugin with its default options."""
    plugin = cast(type[Any], registry.load(kind, spec))
    plugin_object = plugin(plugin.Options(), *args)
    assert isinstance(plugin_object, interface)
    return plugin_object


def exact_method(name: str, model: ModelSpec) -> QuantMethod:
    """Return a quantization method whose products round no activations, if that can be asked for:
    what is compared is the matrices and where they are."""
    plugin = cast(type[Any], registry.load("quantization", name))
    can_say = issubclass(plugin.Options, ActivationOptions)
    method = plugin(plugin.Options(**({"activations": FLOAT} if can_say else {})), model)
    assert isinstance(method, QuantMethod)
    return method


def build_model(
    model: ModelSpec,
    *,
    model_name: str | None = None,
    quantization: str = "none",
    rank: RankSpec | None = None,
    max_tokens: int | None = None,
    expert_placement: str = "",
) -> nn.Module:
    """Return a model with empty parameters on the CPU."""
    context = BuildContext(
        model=model,
        quant=exact_method(quantization, model),
        device="cpu",
        rank=rank or RankSpec(),
        max_tokens=max_tokens,
        expert_placement=expert_placement,
    )
    name = model_name or model.architecture
    built = load_plugin(Model, "model", name, context)  # type: ignore[type-abstract]
    return cast(nn.Module, built)


def load_model(
    path: str | Path,
    *,
    model_name: str | None = None,
    dtype: str = "float32",
    load_format: str = "auto",
    overrides: Mapping[str, Any] | None = None,
    rank: RankSpec | None = None,
    max_tokens: int | None = None,
    expert_placement: str = "",
) -> nn.Module:
    """Return the model of a checkpoint folder with its weights in place, quantized as stored."""
    spec = load_model_facts(path, dtype=dtype, overrides=overrides)
    name = stored_quantization(spec) or "none"
    module = build_model(
        spec,
        model_name=model_name,
        quantization=name,
        rank=rank,
        max_tokens=max_tokens,
        expert_placement=expert_placement,
    )
    quant = exact_method(name, spec)
    reader = load_plugin(LoadFormat, "load_format", load_format)  # type: ignore[type-abstract]
    tensors = quant.checkpoint_tensors(reader.tensors(Checkpoint(path=str(path))))
    with torch.inference_mode():
        load_weights(module, cast(Model, module).weight_map(), tensors, rank, quant.ignored)
    return module.eval()

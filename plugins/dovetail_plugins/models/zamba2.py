"""Zamba 2: Mamba 2 mixers; some layers first call one of a few shared blocks (attention, an MLP).

A layer that calls block B for the n-th time computes, of the T tokens of a step (E hidden size):

    s = B.input_layernorm([x, embeddings])               # [T, 2 E]
    s = B.o_proj(attention(B.qkv_proj(s) + adapter_n(s)))  # [T, E], heads of 2 E / H numbers
    s = B.mlp(B.pre_ff_layernorm(s)), gate and up with adapter_n too
    x = x + mixer(norm(x + linear(s)))                   # other layers: s = 0

A block's matrices are the same in all its calls; each call has its own low-rank adapters, keys and
values. A pipeline stage holds the blocks that its layers call, and receives the embeddings along
with the hidden states.
Source: Glorioso et al., The Zamba2 Suite, 2024 (arXiv 2411.15242).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch import nn

from dovetail.errors import ConfigError
from dovetail.interfaces.attention import AttentionSpec
from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.model import BuildContext, WeightMap
from dovetail.interfaces.plugin import Info
from dovetail.layers.activation import gate
from dovetail.layers.attention import Attention
from dovetail.layers.attention.rotary import HeadRotary, Rope
from dovetail.layers.context import keep_inner
from dovetail.layers.decoder import (
    DecoderConfig,
    DecoderForCausalLM,
    DecoderLayer,
    DecoderModel,
    usual_config,
)
from dovetail.layers.linear import (
    ColumnParallelLinear,
    MergedColumnParallelLinear,
    QKVParallelLinear,
    ReplicatedLinear,
    RowParallelLinear,
)
from dovetail.layers.repeated import of_tensors
from dovetail.layers.residual import unchanged
from dovetail.layers.stages import made_if
from dovetail_plugins.layers.mixers.mamba2 import Mamba2Mixer
from dovetail_plugins.model_types.zamba2 import HYBRID, layer_types, mixer_sizes

BLOCK = "shared_transformer"
LayersByCall = Mapping[int, str | None]
"""The names of the layers that call a block, by the numbers of the calls; None: one of another
stage."""


class CallModules(nn.ModuleDict):
    """A block's per-call modules, by the call's number, as checkpoints list them. Calls on other
    stages are Elsewhere."""

    def add(self, call: int, is_here: bool, make: Callable[[], nn.Module]) -> None:
        """Add a call's module. Mutates: self"""
        self[str(call)] = made_if(is_here, make)

    def of(self, call: int) -> nn.Module:
        """Return the call's own."""
        return self[str(call)]


def adapter(context: BuildContext, name: str, size: int, behind: nn.Module) -> nn.Sequential:
    """Return a low-rank matrix: down on every rank, then `behind` (up)."""
    rank = int(context.model.hf_config["adapter_rank"])
    return nn.Sequential(ReplicatedLinear(context, f"{name}.0", size, rank), behind)


class SharedAttention(nn.Module):
    """Attention over [x, embeddings]: matrices of all calls, adapters and a cache of each."""

    def __init__(
        self,
        context: BuildContext,
        name: str,
        calls: LayersByCall,
    ) -> None:
        super().__init__()
        model = context.model
        size, heads, head = 2 * model.hidden_size, model.num_heads, model.head_size
        self.qkv_proj = QKVParallelLinear(
            context,
            f"{name}.qkv_proj",
            size,
            num_heads=heads,
            num_kv_heads=model.num_kv_heads,
            head_size=head,
        )
        self.o_proj = RowParallelLinear(context, f"{name}.o_proj", heads * head, model.hidden_size)
        local = self.qkv_proj.num_heads, self.qkv_proj.num_kv_heads
        self.rotate = HeadRotary(context, num_heads=local[0], num_kv_heads=local[1], head_size=head)
        spec = AttentionSpec(
            num_heads=local[0],
            num_kv_heads=local[1],
            head_size=head,
            scale=(head / 2) ** -0.5,
        )
        self.attn = CallModules()
        for call, layer in calls.items():
            self.attn.add(call, layer is not None, partial(Attention, f"{layer}.self_attn", spec))
        self.has_adapters = bool(model.hf_config["use_shared_attention_adapter"])
        widths = (heads, model.num_kv_heads, model.num_kv_heads)
        for letter, width in zip("qkv" if self.has_adapters else "", widths, strict=False):
            leaf = f"linear_{letter}_adapter_list"
            listed = CallModules()
            for call, layer in calls.items():
                make = partial(self._adapter, context, f"{name}.{leaf}.{call}", width * head)
                listed.add(call, layer is not None, make)
            self.add_module(leaf, listed)

    @staticmethod
    def _adapter(context: BuildContext, name: str, width: int) -> nn.Sequential:
        rank = int(context.model.hf_config["adapter_rank"])
        up = ColumnParallelLinear(context, f"{name}.1", rank, width)
        return adapter(context, name, 2 * context.model.hidden_size, up)

    def forward(self, x: torch.Tensor, rope: Rope | None, call: int) -> torch.Tensor:
        """Shapes: x [T, 2 E] -> [T, E]"""
        qkv = self.qkv_proj(x)
        if self.has_adapters:
            own = (f"linear_{letter}_adapter_list.{call}" for letter in "qkv")
            (added,) = of_tensors(side_by_side, *(self.get_submodule(name)(x) for name in own))
            (qkv,) = of_tensors(_sum, qkv, added)
        q, k, v = self.rotate(qkv, rope)
        out: torch.Tensor = self.o_proj(self.attn.of(call)(q, k, v))
        return out


class SharedMLP(nn.Module):
    """down(act(gate) * up), with an adapter of gate and up for each call."""

    def __init__(self, context: BuildContext, name: str, act: str, calls: LayersByCall) -> None:
        super().__init__()
        config, size = context.model.hf_config, context.model.hidden_size
        inner, has_bias = int(config["intermediate_size"]), bool(config["add_bias_linear"])
        self.gate = gate(act)
        halves = {"gate": inner, "up": inner}
        self.gate_up_proj = MergedColumnParallelLinear(
            context, f"{name}.gate_up_proj", size, halves, bias=has_bias
        )
        self.down_proj = RowParallelLinear(context, f"{name}.down_proj", inner, size, bias=has_bias)
        self.gate_up_proj_adapter_list = CallModules()
        for call, layer in calls.items():
            own = f"{name}.gate_up_proj_adapter_list.{call}"
            make = partial(self._adapter, context, own, halves)
            self.gate_up_proj_adapter_list.add(call, layer is not None, make)

    @staticmethod
    def _adapter(context: BuildContext, name: str, halves: Mapping[str, int]) -> nn.Sequential:
        rank = int(context.model.hf_config["adapter_rank"])
        up = MergedColumnParallelLinear(context, f"{name}.1", rank, dict(halves))
        return adapter(context, name, context.model.hidden_size, up)

    def forward(self, x: torch.Tensor, call: int) -> torch.Tensor:
        """Shapes: x [T, E] -> [T, E]"""
        added = self.gate_up_proj_adapter_list.of(call)(x)
        (gate_up,) = of_tensors(_sum, self.gate_up_proj(x), added)
        (gated,) = of_tensors(self._gated, gate_up)
        out: torch.Tensor = self.down_proj(gated)
        return out

    def _gated(self, gate_up: torch.Tensor) -> tuple[torch.Tensor]:
        return (self.gate.joined(gate_up),)


class SharedBlock(nn.Module):
    """Attention and an MLP that several layers call: block `number`. `calls`: the names of those
    layers by the numbers of the calls, counted over all blocks."""

    def __init__(
        self,
        context: BuildContext,
        name: str,
        config: DecoderConfig,
        calls: LayersByCall,
        number: int,
    ) -> None:
        super().__init__()
        size, self.number = context.model.hidden_size, number
        self.input_layernorm = config.norm(context, 2 * size, eps=config.norm_eps)
        self.self_attn = SharedAttention(context, f"{name}.self_attn", calls)
        self.pre_ff_layernorm = config.norm(context, size, eps=config.norm_eps)
        self.feed_forward = self.build_mlp(context, f"{name}.feed_forward", config, calls)

    def build_mlp(
        self, context: BuildContext, name: str, config: DecoderConfig, calls: LayersByCall
    ) -> nn.Module:
        """Return the block's MLP: a module of (x, call), x [T, E]."""
        return SharedMLP(context, name, config.hidden_act, calls)

    def forward(
        self, x: torch.Tensor, embedded: torch.Tensor, rope: Rope | None, call: int
    ) -> torch.Tensor:
        """Shapes: x, embedded [T, E] -> [T, E]"""
        (wide,) = of_tensors(side_by_side, x, embedded)
        wide = self.input_layernorm(wide)
        inner = self.pre_ff_layernorm(self.self_attn(wide, rope, call))
        out: torch.Tensor = self.feed_forward(inner, call)
        return out


class Zamba2Layer(DecoderLayer):
    """A mixer; in a layer that calls a block, it follows the block's output. On each stage the
    first layers that call the blocks hold them."""

    block_class: ClassVar[type[SharedBlock]] = SharedBlock
    block_name: ClassVar[str] = BLOCK
    """The block in the checkpoint."""

    def __init__(self, context: BuildContext, name: str, config: DecoderConfig, layer: int) -> None:
        nn.Module.__init__(self)
        settings = context.model.hf_config
        self.input_layernorm = config.build_norm(context)
        self.mamba = self.build_mixer(context, f"{name}.mamba")
        callers = callers_of(config.layer_types)
        self.call = callers.index(layer) if layer in callers else None
        if self.call is None:
            return
        size, num_blocks = context.model.hidden_size, int(settings["num_mem_blocks"])
        self.number = self.call % num_blocks
        self.linear = ReplicatedLinear(context, f"{name}.linear", size, size)
        here = context.rank.layers(context.model.num_layers)
        if holders(callers, num_blocks, here)[self.number] == layer:
            trunk = name.rpartition(".")[0]
            calls = range(self.number, len(callers), num_blocks)
            layers = {call: callers[call] for call in calls}
            names = {c: f"{trunk}.{i}" if i in here else None for c, i in layers.items()}
            self.shared_transformer = self.block_class(
                context, f"{name}.{self.block_name}", config, names, self.number
            )

    def build_mixer(self, context: BuildContext, name: str) -> nn.Module:
        """Return the layer's mixer: a module of (x, residual), both [T, E]."""
        return Mamba2Mixer(context, name, mixer_sizes(context.model.hf_config))

    def forward(
        self,
        x: torch.Tensor,
        ropes: Mapping[str, Rope],
        embedded: torch.Tensor | None = None,
        blocks: Mapping[int, SharedBlock] = MappingProxyType({}),
    ) -> torch.Tensor:
        """`embedded` are the embeddings, for a layer that calls one of the blocks. Shapes: x,
        embedded [T, E] -> [T, E]"""
        inner = x
        if self.call is not None:
            assert embedded is not None
            block = blocks[self.number]
            output = self.linear(block(x, embedded, ropes.get(HYBRID), self.call))
            (inner,) = of_tensors(_sum, x, output)
        out: torch.Tensor = self.mamba(self.input_layernorm(inner), x)
        return out


def callers_of(kinds: Sequence[str]) -> list[int]:
    """Return the layers that call a block, in their order."""
    return [layer for layer, kind in enumerate(kinds) if kind == HYBRID]


def holders(callers: Sequence[int], num_blocks: int, layers: Container[int]) -> dict[int, int]:
    """Return the layer that holds each block called in some layers, by the block's number: the
    first that calls it."""
    found: dict[int, int] = {}
    for call, layer in enumerate(callers):
        if layer in layers:
            found.setdefault(call % num_blocks, layer)
    return found


class Zamba2Model(DecoderModel):
    """Embedding, layers and the last norm; the blocks see the embeddings again."""

    def __init__(
        self,
        context: BuildContext,
        name: str,
        config: DecoderConfig,
        layer_class: type[DecoderLayer] = Zamba2Layer,
    ) -> None:
        super().__init__(context, name, config, layer_class)
        self.stage.width = 2 * context.model.hidden_size
        modules = self.modules()
        self._blocks = {m.number: m for m in modules if isinstance(m, SharedBlock)}

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return hidden states, followed by the embeddings on all stages except the last.
        Shapes: token_ids, positions [T] -> [T, E] or [T, 2 E]"""
        if self.stage.is_first:
            x = self.embed(token_ids, positions)
            embedded = unchanged(x)
        else:
            x, embedded = of_tensors(_halves, self.stage.received(token_ids))
        ropes = {name: rotary(positions) for name, rotary in self.rotaries.items()}
        for number, layer in enumerate(self.layers):
            if self.inner is not None and number in self.inner:
                keep_inner(self.inner, number, x)
            x = layer(x, ropes, embedded, self._blocks)
        if self.stage.is_last:
            return self.norm(x)
        return of_tensors(side_by_side, x, embedded)[0]

    def build_rotaries(self, context: BuildContext, layer_types: set[str]) -> nn.ModuleDict:
        """Return the table of the blocks, if they are rotated."""
        rotated = {HYBRID} if context.model.hf_config["use_mem_rope"] else set()
        return super().build_rotaries(context, layer_types & rotated)


def _halves(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return tuple(half.contiguous() for half in x.chunk(2, dim=-1))


def _sum(one: torch.Tensor, other: torch.Tensor) -> tuple[torch.Tensor]:
    return (one + other,)


def side_by_side(*parts: torch.Tensor) -> tuple[torch.Tensor]:
    """Return the parts side by side. Shapes: [T, A], .. -> [T, A + ..]"""
    return (torch.cat(parts, dim=-1),)


class Zamba2ForCausalLM(DecoderForCausalLM):
    """Zamba 2 with its head."""

    info = Info(
        summary="Zamba 2: Mamba 2 and shared attention", source="https://arxiv.org/abs/2411.15242"
    )
    capabilities: ClassVar[frozenset[str]] = frozenset({"tensor_parallel", "pipeline_parallel"})
    model_class = Zamba2Model
    layer_class: ClassVar[type[Zamba2Layer]] = Zamba2Layer

    def __init__(self, options: Any, context: BuildContext) -> None:
        settings = context.model.hf_config
        callers = callers_of(self.decoder_config(context.model).layer_types)
        count = int(settings["num_mem_blocks"])
        here = context.rank.layers(context.model.num_layers)
        own = self.layer_class.block_name
        self._repeated = tuple(_name_of_block(i, own) for i in callers[count:])
        self._moved = tuple(
            (_name_of_block(callers[number], own), _name_of_block(layer, BLOCK))
            for number, layer in holders(callers, count, here).items()
        )
        super().__init__(options, context)

    @classmethod
    def decoder_config(cls, model: ModelSpec) -> DecoderConfig:
        """Return the config. Raises: ConfigError for a longer context than was trained."""
        config = model.hf_config
        if config["use_long_context"]:
            raise ConfigError(
                "Zamba 2's rescaled rotation for long contexts is not supported.",
                where="config.json: use_long_context",
                fix="set it to false, and stay within 4096 tokens.",
            )
        return usual_config(model, layer_types=layer_types(config))

    def weight_map(self) -> WeightMap:
        """Return the names, without copies of the blocks in layers that call them later; on a later
        stage its own first callers hold them."""
        usual = super().weight_map()
        return replace(
            usual,
            prefixes=(
                *usual.prefixes,
                *((f"{t}final_layernorm.", "model.norm.") for t in ("model.", "")),
            ),
            renames=((".mamba_decoder.", "."), *self._moved),
            fused={leaf: usual.fused[leaf] for leaf in ("q_proj", "k_proj", "v_proj")},
            ignored=(*usual.ignored, *self._repeated),
        )


def _name_of_block(layer: int, block: str) -> str:
    """Return the name part that identifies a layer's block."""
    return f".layers.{layer}.{block}."

"""Zamba 2: Mamba 2 mixers; some layers first call one of a few shared blocks (attention, an MLP).

A layer that calls block B for the n-th time computes, of the T tokens of a step (E hidden size):

    s = B.input_layernorm([x, embeddings])               # [T, 2 E]
    s = B.o_proj(attention(B.qkv_proj(s) + adapter_n(s)))  # [T, E], heads of 2 E / H numbers
    s = B.mlp(B.pre_ff_layernorm(s)), gate and up with adapter_n too
    x = x + mixer(norm(x + linear(s)))                   # other layers: s = 0

A block's matrices are the same in all its calls; what is its own in each are low-rank adapters and
the keys and values. Source: Glorioso et al., The Zamba2 Suite, 2024 (arXiv 2411.15242).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import nn

from dovetail.errors import ConfigError
from dovetail.interfaces.attention import AttentionSpec
from dovetail.interfaces.model import BuildContext, WeightMap
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.spec import ModelSpec
from dovetail.layers.activation import gate
from dovetail.layers.attention import Attention
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
from dovetail.layers.mamba2 import Mamba2Mixer
from dovetail.layers.rotary import HeadRotary, Rope
from dovetail_plugins.model_types.zamba2 import HYBRID, layer_types, mixer_sizes

BLOCK = "shared_transformer"


class Calls(nn.ModuleDict):
    """What a block has of its own for each call, by the call's number, as checkpoints list it."""

    def of(self, call: int) -> nn.Module:
        """Return the call's own."""
        return self[str(call)]


def adapter(context: BuildContext, name: str, size: int, behind: nn.Module) -> nn.Sequential:
    """Return a low-rank matrix: down on every rank, then `behind`, up."""
    rank = int(context.model.hf_config["adapter_rank"])
    return nn.Sequential(ReplicatedLinear(context, f"{name}.0", size, rank), behind)


class SharedAttention(nn.Module):
    """Attention over [x, embeddings]: matrices of all calls, adapters and a cache of each."""

    def __init__(
        self,
        context: BuildContext,
        name: str,
        calls: Mapping[int, str],
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
        self.attn = Calls()
        for call, layer in calls.items():
            self.attn[str(call)] = Attention(f"{layer}.self_attn", spec)
        self.has_adapters = bool(model.hf_config["use_shared_attention_adapter"])
        widths = (heads, model.num_kv_heads, model.num_kv_heads)
        for letter, width in zip("qkv" if self.has_adapters else "", widths, strict=False):
            leaf = f"linear_{letter}_adapter_list"
            listed = Calls()
            for call in calls:
                own = f"{name}.{leaf}.{call}"
                up = ColumnParallelLinear(
                    context, f"{own}.1", int(model.hf_config["adapter_rank"]), width * head
                )
                listed[str(call)] = adapter(context, own, size, up)
            self.add_module(leaf, listed)

    def forward(self, x: torch.Tensor, rope: Rope | None, call: int) -> torch.Tensor:
        """Shapes: x [T, 2 E] -> [T, E]"""
        qkv = self.qkv_proj(x)
        if self.has_adapters:
            own = (f"linear_{letter}_adapter_list.{call}" for letter in "qkv")
            qkv = qkv + torch.cat([self.get_submodule(name)(x) for name in own], dim=-1)
        q, k, v = self.rotate(qkv, rope)
        out: torch.Tensor = self.o_proj(self.attn.of(call)(q, k, v))
        return out


class SharedMLP(nn.Module):
    """down(act(gate) * up), with an adapter of gate and up for each call."""

    def __init__(
        self, context: BuildContext, name: str, act: str, calls: Mapping[int, str]
    ) -> None:
        super().__init__()
        config, size = context.model.hf_config, context.model.hidden_size
        inner, has_bias = int(config["intermediate_size"]), bool(config["add_bias_linear"])
        self.gate = gate(act)
        halves = {"gate": inner, "up": inner}
        self.gate_up_proj = MergedColumnParallelLinear(
            context, f"{name}.gate_up_proj", size, halves, bias=has_bias
        )
        self.down_proj = RowParallelLinear(context, f"{name}.down_proj", inner, size, bias=has_bias)
        self.gate_up_proj_adapter_list = Calls()
        for call in calls:
            own = f"{name}.gate_up_proj_adapter_list.{call}"
            up = MergedColumnParallelLinear(
                context, f"{own}.1", int(config["adapter_rank"]), halves
            )
            self.gate_up_proj_adapter_list[str(call)] = adapter(context, own, size, up)

    def forward(self, x: torch.Tensor, call: int) -> torch.Tensor:
        """Shapes: x [T, E] -> [T, E]"""
        gate_up = self.gate_up_proj(x) + self.gate_up_proj_adapter_list.of(call)(x)
        out: torch.Tensor = self.down_proj(self.gate.joined(gate_up))
        return out


class SharedBlock(nn.Module):
    """Attention and an MLP that several layers call. `calls`: the names of those layers by the
    numbers of the calls, counted over all blocks."""

    def __init__(
        self, context: BuildContext, name: str, config: DecoderConfig, calls: Mapping[int, str]
    ) -> None:
        super().__init__()
        size = context.model.hidden_size
        self.input_layernorm = config.norm(context, 2 * size, eps=config.norm_eps)
        self.self_attn = SharedAttention(context, f"{name}.self_attn", calls)
        self.pre_ff_layernorm = config.norm(context, size, eps=config.norm_eps)
        self.feed_forward = SharedMLP(context, f"{name}.feed_forward", config.hidden_act, calls)

    def forward(
        self, x: torch.Tensor, embedded: torch.Tensor, rope: Rope | None, call: int
    ) -> torch.Tensor:
        """Shapes: x, embedded [T, E] -> [T, E]"""
        wide = self.input_layernorm(torch.cat([x, embedded], dim=-1))
        inner = self.pre_ff_layernorm(self.self_attn(wide, rope, call))
        out: torch.Tensor = self.feed_forward(inner, call)
        return out


class Zamba2Layer(DecoderLayer):
    """A mixer; in a layer that calls a block, behind what the block makes. The first layers that do
    hold the blocks."""

    def __init__(self, context: BuildContext, name: str, config: DecoderConfig, layer: int) -> None:
        nn.Module.__init__(self)
        settings = context.model.hf_config
        self.input_layernorm = config.build_norm(context)
        self.mamba = Mamba2Mixer(context, f"{name}.mamba", mixer_sizes(settings))
        callers = [i for i, kind in enumerate(config.layer_types) if kind == HYBRID]
        self.call = callers.index(layer) if layer in callers else None
        if self.call is None:
            return
        size, num_blocks = context.model.hidden_size, int(settings["num_mem_blocks"])
        self.linear = ReplicatedLinear(context, f"{name}.linear", size, size)
        if self.call < num_blocks:
            trunk = name.rpartition(".")[0]
            calls = range(self.call, len(callers), num_blocks)
            names = {call: f"{trunk}.{callers[call]}" for call in calls}
            self.shared_transformer = SharedBlock(context, f"{name}.{BLOCK}", config, names)

    def forward(
        self,
        x: torch.Tensor,
        ropes: Mapping[str, Rope],
        embedded: torch.Tensor | None = None,
        blocks: Sequence[SharedBlock] = (),
    ) -> torch.Tensor:
        """`embedded` are the embeddings, for a layer that calls one of the blocks. Shapes: x,
        embedded [T, E] -> [T, E]"""
        inner = x
        if self.call is not None:
            assert embedded is not None
            block = blocks[self.call % len(blocks)]
            inner = x + self.linear(block(x, embedded, ropes.get(HYBRID), self.call))
        out: torch.Tensor = self.mamba(self.input_layernorm(inner), x)
        return out


class Zamba2Model(DecoderModel):
    """Embedding, layers and the last norm; the blocks see the embeddings again."""

    def build_rotaries(self, context: BuildContext, layer_types: set[str]) -> nn.ModuleDict:
        """Return the table of the blocks, where they are rotated."""
        rotated = {HYBRID} if context.model.hf_config["use_mem_rope"] else set()
        return super().build_rotaries(context, layer_types & rotated)

    def layer_arguments(self, x: torch.Tensor, positions: torch.Tensor) -> tuple[Any, ...]:
        """Return the embeddings and the blocks. Shapes: x [T, E], positions [T]"""
        return x, [module for module in self.modules() if isinstance(module, SharedBlock)]


class Zamba2ForCausalLM(DecoderForCausalLM):
    """Zamba 2 with its head. Its stages cannot be divided: they share blocks."""

    info = Info(
        summary="Zamba 2: Mamba 2 and shared attention", source="https://arxiv.org/abs/2411.15242"
    )
    capabilities: ClassVar[frozenset[str]] = frozenset({"tensor_parallel"})
    whole_because = "layers from its first to its last call the same few blocks"
    model_class = Zamba2Model
    layer_class = Zamba2Layer

    def __init__(self, options: Any, context: BuildContext) -> None:
        settings = context.model.hf_config
        callers = [i for i, kind in enumerate(layer_types(settings)) if kind == HYBRID]
        later = callers[int(settings["num_mem_blocks"]) :]
        self._repeated = tuple(f".layers.{i}.{BLOCK}." for i in later)
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
        """Return the names, without copies of the blocks in layers that call them later."""
        usual = super().weight_map()
        return replace(
            usual,
            prefixes=(
                *usual.prefixes,
                *((f"{t}final_layernorm.", "model.norm.") for t in ("model.", "")),
            ),
            renames=((".mamba_decoder.", "."),),
            fused={leaf: usual.fused[leaf] for leaf in ("q_proj", "k_proj", "v_proj")},
            ignored=(*usual.ignored, *self._repeated),
        )

"""RecurrentGemma (Griffin): two layers of a gated linear recurrence to each of local attention.

A recurrent layer computes, for the T tokens of a step (C channels, in H blocks of a matrix each):

    y, x = act(linear_y(h)), conv(linear_x(h))           # [T, C]
    r, i = sigmoid(x W_r + b_r), sigmoid(x W_i + b_i)    # [T, C], block by block
    a = exp(-8 r softplus(p))
    s = a s + sqrt(1 - a^2) i x                          # a row's first token: s = i x
    h = h + linear_out(s y)

That is a selective scan with one number a channel, whose time step is -log a.
Source: De et al., Griffin, 2024 (arXiv 2402.19427); Botev et al., RecurrentGemma, 2024.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import nn

from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.model import BuildContext, WeightMap
from dovetail.interfaces.plugin import Info
from dovetail.layers.attention.rotary import Rope
from dovetail.layers.decoder import (
    SLIDING,
    DecoderAttention,
    DecoderConfig,
    DecoderForCausalLM,
    DecoderLayer,
    GatedMLP,
)
from dovetail.layers.linear import (
    ActivatedLinear,
    ColumnParallelLinear,
    RowParallelLinear,
    even_part,
)
from dovetail.layers.state import Part, RowStates, State
from dovetail.parallel.groups import tensor_group
from dovetail_kernels import selective_scan
from dovetail_kernels.op import Arguments
from dovetail_kernels.selective_scan.native import SelectiveScan
from dovetail_plugins.layers.mixers.hybrid import HybridModel
from dovetail_plugins.layers.mixers.recurrent import DividedVectors, OverRows, ShortConv
from dovetail_plugins.model_types.recurrent_gemma import MIXER, layer_types, width
from dovetail_plugins.models.gemma import gemma_config

CONV, SUM = "conv", "sum"
"""The parts of the state."""
SHARPNESS = 8.0
"""The factor of the logarithm of a."""


class RgLru(DividedVectors):
    """The real-gated linear recurrent unit. Blocks of channels are divided over ranks."""

    def __init__(self, context: BuildContext, name: str, channels: int) -> None:
        super().__init__()
        group, blocks = (
            tensor_group(context.rank),
            int(context.model.hf_config["num_attention_heads"]),
        )
        size = channels // blocks
        block, channel = even_part("", blocks, group, name), even_part("", channels, group, name)
        self.blocks = block.local
        for gate in ("input_gate", "recurrent_gate"):
            self.add_vector(context, f"{gate}_weight", (block,), behind=(size, size))
            self.add_vector(context, f"{gate}_bias", (block,), behind=(size,))
        self.add_vector(context, "recurrent_param", (channel,), dtype=torch.float32)
        self._local = channel.local
        minus, none = -torch.ones(self._local, 1), torch.zeros(self._local)
        self.register_buffer("minus", minus.to(context.device), persistent=False)
        self.register_buffer("none", none.to(context.device), persistent=False)
        self._scan = OverRows(selective_scan.OP, context, SelectiveScan, self._bound)

    def state_part(self) -> Part:
        """Return a row's state."""
        return Part(name=SUM, shape=(self._local, 1))

    def finish(self) -> None:
        """Make the factor of the steps of its parameter. Mutates: self"""
        factor = SHARPNESS * F.softplus(self.get_parameter("recurrent_param").data)
        self.register_buffer("factor", factor, persistent=False)
        self._scan.finish()

    def _bound(self) -> Arguments:
        """Return the arguments of the scan that are this layer's."""
        return {"a": self.get_buffer("minus"), "d": self.get_buffer("none"), "dt_bias": None}

    def forward(
        self, x: torch.Tensor, is_first: torch.Tensor, state: torch.Tensor, rows: RowStates
    ) -> torch.Tensor:
        """Return the sums. Shapes: x [T, C], is_first [T] bool, state [N, C, 1] -> [T, C]. Mutates:
        state"""
        r, i = (self._gate(x, gate) for gate in ("recurrent_gate", "input_gate"))
        step = r * self.get_buffer("factor")
        share = torch.where(is_first.unsqueeze(1), 1.0, (-torch.expm1(-2 * step)).sqrt())
        driven = (share * i * x.float() / step).to(x.dtype)
        raw = (step + torch.log(-torch.expm1(-step))).to(x.dtype)  # the step is softplus of this
        one = torch.ones(len(x), 1, dtype=x.dtype, device=x.device)
        return self._scan(state, rows, x=driven, dt=raw, b=one, c=one, z=None)

    def _gate(self, x: torch.Tensor, name: str) -> torch.Tensor:
        """Return the sigmoid of a product block by block. Shapes: x [T, C] -> [T, C] float32"""
        weight, bias = self.get_parameter(f"{name}_weight"), self.get_parameter(f"{name}_bias")
        blocks = x.unflatten(1, (self.blocks, -1)).transpose(0, 1)
        products = torch.bmm(blocks, weight).transpose(0, 1) + bias
        return products.flatten(1).float().sigmoid()


class RecurrentBlock(nn.Module):
    """A convolution and a recurrence, times a gate."""

    def __init__(self, context: BuildContext, name: str, act: str) -> None:
        super().__init__()
        settings, size = context.model.hf_config, context.model.hidden_size
        channels = width(settings)
        part = even_part("", channels, tensor_group(context.rank), name)
        self.linear_y = ActivatedLinear(
            context, f"{name}.linear_y", size, channels, act=act, bias=True
        )
        self.linear_x = ColumnParallelLinear(context, f"{name}.linear_x", size, channels, bias=True)
        self.conv_1d = ShortConv(context, (part,), int(settings["conv1d_width"]), bias=True)
        self.rg_lru = RgLru(context, f"{name}.rg_lru", channels)
        self.linear_out = RowParallelLinear(
            context, f"{name}.linear_out", channels, size, bias=True
        )
        self.state = State(name, (self.conv_1d.state_part(CONV), self.rg_lru.state_part()))

    def forward(
        self, x: torch.Tensor, is_first: torch.Tensor, residual: torch.Tensor
    ) -> torch.Tensor:
        """Shapes: x, residual [T, E], is_first [T] -> [T, E]"""
        parts, rows = self.state.step()
        gate = self.linear_y(x)
        inner = self.conv_1d(self.linear_x(x), parts[CONV], rows)
        return self.linear_out(self.rg_lru(inner, is_first, parts[SUM], rows) * gate, residual)


class RecurrentGemmaLayer(DecoderLayer):
    """One layer: a recurrence or local attention, and an MLP."""

    def __init__(self, context: BuildContext, name: str, config: DecoderConfig, layer: int) -> None:
        nn.Module.__init__(self)
        self.kind, own = config.layer_types[layer], f"{name}.temporal_block"
        self.temporal_pre_norm = config.build_norm(context)
        self.channel_pre_norm = config.build_norm(context)
        self.temporal_block: nn.Module
        if self.kind == MIXER:
            self.temporal_block = RecurrentBlock(context, own, config.hidden_act)
        else:
            self.temporal_block = DecoderAttention(context, own, config, layer)
        inner = int(context.model.hf_config["intermediate_size"]) // 2
        self.mlp_block = GatedMLP(
            context, f"{name}.mlp_block", inner=inner, act=config.hidden_act, bias=True
        )

    def forward(
        self,
        x: torch.Tensor,
        ropes: Mapping[str, Rope],
        is_first: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """`is_first`: which tokens are their rows' first. Shapes: x [T, E], is_first [T] -> x's"""
        inner = self.temporal_pre_norm(x)
        if self.kind == MIXER:
            x = self.temporal_block(inner, is_first, x)
        else:
            x = self.temporal_block(inner, ropes[SLIDING], x)
        out: torch.Tensor = self.mlp_block(self.channel_pre_norm(x), x)
        return out


class RecurrentGemmaModel(HybridModel):
    """Embedding, layers and the last norm; layers know which tokens are the first."""

    def layer_arguments(
        self, x: torch.Tensor, token_ids: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """Return which tokens are their rows' first. Shapes: x [T, E], positions [T] -> [T]"""
        return (positions == 0,)


class RecurrentGemmaForCausalLM(DecoderForCausalLM):
    """RecurrentGemma with its tied head."""

    info = Info(summary="RecurrentGemma", source="https://arxiv.org/abs/2402.19427")
    model_class = RecurrentGemmaModel
    layer_class = RecurrentGemmaLayer

    @classmethod
    def decoder_config(cls, model: ModelSpec) -> DecoderConfig:
        """Return Gemma's config; embeddings are scaled by a number rounded to bfloat16."""
        config = model.hf_config
        scale = float(torch.tensor(model.hidden_size**0.5, dtype=torch.bfloat16))
        return gemma_config(
            model,
            layer_types=layer_types(config),
            window_tokens=int(config["attention_window_size"]),
            has_out_bias=True,
            embedding_scale=scale,
            rotary_share=0.5,
            final_logit_softcap=float(config["logits_soft_cap"]),
        )

    def weight_map(self) -> WeightMap:
        """Return the usual names, except for the last norm."""
        usual = super().weight_map()
        last = tuple((f"{trunk}final_norm.", "model.norm.") for trunk in ("model.", ""))
        return replace(usual, prefixes=(*usual.prefixes, *last))

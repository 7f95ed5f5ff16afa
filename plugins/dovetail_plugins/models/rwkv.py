"""RWKV-4: layers of a decaying average over the past and a feed-forward part, no attention.

A layer mixes each input with the one before it, channel by channel, and computes for the T tokens
of a step (C channels):

    k, v, r = key(mix_k(h)), value(mix_v(h)), receptance(mix_r(h))    # [T, C]
    h = h + output(wkv(k, v, r))                                      # dovetail_kernels.wkv
    h = h + sigmoid(receptance(mix_r(h))) value(relu(key(mix_k(h)))^2)

Each block reads its own layer norm of h. To avoid overflow in 16 bits, h is halved after every
`rescale_every` layers, and so are the terms added to it.
Source: Peng et al., RWKV: reinventing RNNs for the transformer era, 2023 (arXiv 2305.13048).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import nn

from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.model import BuildContext, WeightMap
from dovetail.interfaces.plugin import Info
from dovetail.layers.attention.rotary import Rope
from dovetail.layers.decoder import DecoderConfig, DecoderForCausalLM, DecoderLayer, usual_config
from dovetail.layers.dtypes import dtype_of
from dovetail.layers.linear import (
    ActivatedLinear,
    ColumnParallelLinear,
    ReplicatedLinear,
    RowParallelLinear,
    even_part,
)
from dovetail.layers.norm import LayerNorm
from dovetail.layers.repeated import of_tensors
from dovetail.layers.state import CONV, Part, RowStates, State
from dovetail.parallel.groups import tensor_group
from dovetail_kernels import short_conv, wkv
from dovetail_kernels.op import Arguments
from dovetail_kernels.short_conv.native import ShortConv
from dovetail_kernels.wkv.native import Wkv
from dovetail_plugins.layers.mixers.hybrid import UnrotatedModel
from dovetail_plugins.layers.mixers.recurrent import DividedVectors, OverRows
from dovetail_plugins.model_types.rwkv import channels, inner_size

ATTENTION, FEED_FORWARD, AVERAGE = "attention", "feed_forward", "average"
"""The parts of the state: the last input of each part of a layer, and the averages."""


class TokenMix(nn.Module):
    """Mixes inputs with the ones before them, for each matrix by its own share of each channel:
    h m + h' (1 - m)."""

    def __init__(self, context: BuildContext, part: str, names: tuple[str, ...]) -> None:
        super().__init__()
        size, dtype = context.model.hidden_size, dtype_of(context.model.dtype)
        self.part, self.names = part, names
        for name in names:
            share = torch.empty(1, 1, size, dtype=dtype, device=context.device)
            self.register_parameter(name, nn.Parameter(share, requires_grad=False))
        before = torch.tensor([1.0, 0.0]).expand(size, 2).to(context.device, dtype)
        self.register_buffer("before", before.contiguous(), persistent=False)
        self._shift = OverRows(short_conv.OP, context, ShortConv, lambda: {"activation": "none"})
        self._shift.finish()

    def state_part(self, context: BuildContext) -> Part:
        """Return a row's state: its last input."""
        return Part(name=self.part, shape=(context.model.hidden_size, 1), holds=CONV)

    def forward(
        self, x: torch.Tensor, parts: Mapping[str, torch.Tensor], rows: RowStates
    ) -> tuple[torch.Tensor, ...]:
        """Return a mixture for each name. Shapes: x [T, E] -> [T, E] each. Mutates: parts"""
        weight = self.get_buffer("before")
        before = self._shift(parts[self.part], rows, x=x, weight=weight, bias=None)
        return of_tensors(self._mixed, before, x)

    def _mixed(self, before: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        shares = (self.get_parameter(name)[0] for name in self.names)
        return tuple(torch.lerp(before, x, share) for share in shares)


class RwkvAttention(DividedVectors):
    """The decaying average of one layer. The channels are divided over ranks."""

    def __init__(self, context: BuildContext, name: str, scale: float) -> None:
        super().__init__()
        hidden, size = context.model.hidden_size, channels(context.model.hf_config)
        part = even_part("", size, tensor_group(context.rank), name)
        self.local, self.scale = part.local, scale
        self.mix = TokenMix(
            context, ATTENTION, ("time_mix_key", "time_mix_value", "time_mix_receptance")
        )
        for leaf in ("key", "value", "receptance"):
            self.add_module(leaf, ColumnParallelLinear(context, f"{name}.{leaf}", hidden, size))
        self.output = RowParallelLinear(context, f"{name}.output", size, hidden)
        self.add_vector(context, "time_decay", (part,), dtype=torch.float32)
        self.add_vector(context, "time_first", (part,), dtype=torch.float32)
        self._average = OverRows(wkv.OP, context, Wkv, self._bound)

    def state_part(self) -> Part:
        """Return a row's state of averages."""
        return Part(name=AVERAGE, shape=(3, self.local))

    def finish(self) -> None:
        """Make the decay of its logarithm. Mutates: self"""
        decay = -torch.exp(self.get_parameter("time_decay").data)
        self.register_buffer("decay", decay, persistent=False)
        self._average.finish()

    def _bound(self) -> Arguments:
        """Return the arguments of the average that are this layer's."""
        return {"decay": self.get_buffer("decay"), "first": self.get_parameter("time_first").data}

    def forward(
        self,
        x: torch.Tensor,
        residual: torch.Tensor,
        parts: Mapping[str, torch.Tensor],
        rows: RowStates,
    ) -> torch.Tensor:
        """Shapes: x, residual [T, E] -> [T, E]. Mutates: parts"""
        leaves = ("key", "value", "receptance")
        mixed = self.mix(x, parts, rows)
        k, v, r = (self.get_submodule(leaf)(own) for leaf, own in zip(leaves, mixed, strict=True))
        averages = self._average(parts[AVERAGE], rows, k=k, v=v, r=r)
        if self.scale != 1.0:
            (averages,) = of_tensors(lambda average: (average * self.scale,), averages)
        return self.output(averages, residual)


class RwkvFeedForward(nn.Module):
    """The feed-forward part of one layer, whose gate every rank computes."""

    def __init__(self, context: BuildContext, name: str, scale: float) -> None:
        super().__init__()
        hidden, inner = context.model.hidden_size, inner_size(context.model.hf_config)
        self.scale = scale
        self.mix = TokenMix(context, FEED_FORWARD, ("time_mix_key", "time_mix_receptance"))
        self.key = ActivatedLinear(context, f"{name}.key", hidden, inner, act="relu2")
        self.receptance = ReplicatedLinear(context, f"{name}.receptance", hidden, hidden)
        self.value = RowParallelLinear(context, f"{name}.value", inner, hidden)

    def forward(
        self,
        x: torch.Tensor,
        residual: torch.Tensor,
        parts: Mapping[str, torch.Tensor],
        rows: RowStates,
    ) -> torch.Tensor:
        """Shapes: x, residual [T, E] -> [T, E]. Mutates: parts"""
        key, receptance = self.mix(x, parts, rows)
        value = self.value(self.key(key))
        return of_tensors(self._added, residual, self.receptance(receptance), value)[0]

    def _added(
        self, residual: torch.Tensor, receptance: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor]:
        return (torch.addcmul(residual, receptance.sigmoid() * self.scale, value),)


class RwkvLayer(DecoderLayer):
    """One layer; the first one norms the token vectors."""

    def __init__(self, context: BuildContext, name: str, config: DecoderConfig, layer: int) -> None:
        nn.Module.__init__(self)
        every = int(context.model.hf_config["rescale_every"])
        scale = 0.5 ** (layer // every) if every > 0 else 1.0
        self.is_halved = every > 0 and (layer + 1) % every == 0
        self.pre_ln = config.build_norm(context) if layer == 0 else None
        self.ln1, self.ln2 = config.build_norm(context), config.build_norm(context)
        self.attention = RwkvAttention(context, f"{name}.attention", scale)
        self.feed_forward = RwkvFeedForward(context, f"{name}.feed_forward", scale)
        shifts = (part.mix.state_part(context) for part in (self.attention, self.feed_forward))
        self.state = State(f"{name}.attention", (*shifts, self.attention.state_part()))

    def forward(self, x: torch.Tensor, ropes: Mapping[str, Rope]) -> torch.Tensor:
        """Shapes: x [T, E] -> [T, E]"""
        if self.pre_ln is not None:
            x = self.pre_ln(x)
        parts, rows = self.state.step()
        x = self.attention(self.ln1(x), x, parts, rows)
        x = self.feed_forward(self.ln2(x), x, parts, rows)
        return of_tensors(lambda halved: (halved / 2,), x)[0] if self.is_halved else x


class RwkvModel(UnrotatedModel):
    """The layers; the last norm has its own epsilon."""

    def __init__(
        self,
        context: BuildContext,
        name: str,
        config: DecoderConfig,
        layer_class: type[DecoderLayer] = RwkvLayer,
    ) -> None:
        super().__init__(context, name, config, layer_class)
        self.norm = self.stage.last(lambda: replace(config, norm_eps=1e-5).build_norm(context))


class RwkvForCausalLM(DecoderForCausalLM):
    """RWKV-4 with its head."""

    info = Info(summary="RWKV-4", source="https://arxiv.org/abs/2305.13048")
    model_class = RwkvModel
    layer_class = RwkvLayer

    @classmethod
    def decoder_config(cls, model: ModelSpec) -> DecoderConfig:
        """Return the usual config with layer norms."""
        eps = float(model.hf_config["layer_norm_epsilon"])
        return usual_config(model, norm=LayerNorm, norm_eps=eps)

    def weight_map(self) -> WeightMap:
        """Return the names: RWKV's own for all but the matrices."""
        usual = super().weight_map()
        trunk = (
            ("embeddings.", "model.embed_tokens."),
            ("blocks.", "model.layers."),
            ("ln_out.", "model.norm."),
        )
        return WeightMap(
            prefixes=(
                *((f"rwkv.{name}", to) for name, to in trunk),
                *trunk,
                ("head.", "lm_head."),
            ),
            renames=((".time_mix_", ".mix.time_mix_"),),
            tied=usual.tied,
        )

"""Hunyuan 4 (Hy4): GLM-5's sparse latent attention, with sinks and an output gate, in layers that
read and write four streams of hidden states; experts whose gates are clamped.

For the T tokens of a step (H heads), with x what a layer's part reads of the streams:

    h = o_proj(attention(norm(x)) sigmoid(gate_proj(norm(x))))

A head's softmax has one more score, its sink. The indexer turns the last numbers of its heads.
Source: Tencent Hunyuan Team, Hy4, 2026, as transformers has it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import msgspec
import torch
from torch import nn

from dovetail.interfaces.data.media import PartPlace
from dovetail.interfaces.model import BuildContext, WeightMap
from dovetail.interfaces.plugin import Info
from dovetail.layers.attention.latent import LatentAttention, LatentConfig, latent_rope
from dovetail.layers.attention.rotary import Rope
from dovetail.layers.decoder import DecoderConfig, DecoderLayer
from dovetail.layers.linear import ColumnParallelLinear
from dovetail.layers.linear.placement import Part
from dovetail.layers.media import SECTIONS, SpatialRotary
from dovetail.parallel.groups import tensor_group
from dovetail_plugins.layers.attention.indexed import IndexedAttention
from dovetail_plugins.layers.attention.indexer import IndexerConfig
from dovetail_plugins.layers.attention.output_gate import OutputGate
from dovetail_plugins.layers.hyper_connection import (
    HyperConnection,
    JoinedNorm,
    StreamsConfig,
    spread,
)
from dovetail_plugins.layers.mixers.recurrent import DividedVectors
from dovetail_plugins.layers.moe import in_float32
from dovetail_plugins.models._media import TEXT_PARTS, MediaModel
from dovetail_plugins.models._moe import clamped, sigmoid_rule
from dovetail_plugins.models._text_part import text_part
from dovetail_plugins.models.deepseek import (
    DeepseekModel,
    DeepseekMoE,
    DeepseekV32ForCausalLM,
    IndexedLayer,
    latent_config,
    unquantized,
)

RENAMES = (
    (".hc_pre.hc_", ".hc_"),
    (".hc_attn_layer.hc_", ".attn_hc."),
    (".hc_mlp_layer.hc_", ".ffn_hc."),
    ("_hc.fn", "_hc.fn.weight"),
    (".fn.weight.weight", ".fn.weight"),
    ("hc_head.hc_head_", "hc_head.hc_"),
    ("hc_head.hc_fn", "norm.head.fn.weight"),
    ("hc_head.hc_", "norm.head."),
    (".learnable_sink_param", ".sinks"),
    (".self_attn.linear_gate.", ".self_attn.head_gate."),
    (".self_attn.gate_proj.", ".self_attn.head_gate."),
    (".linear_gate.", ".gate_proj."),
)
"""The names of released checkpoints and of transformers, which saves the MLPs' gates by the name
that released ones have for attention's, and here."""
DRAFTER = "model.mtp_layers."
ENCODER = "vit."
TOWER = "encoder.vision_tower."
TOWER_RENAMES = (
    (".input_layernorm.", ".layer_norm1."),
    (".post_attention_layernorm.", ".layer_norm2."),
    (".dense_h_to_4h.", ".fc1."),
    (".dense_4h_to_h.", ".fc2."),
    ("perceive.", "patch_merger."),
    ("patch_merger.norm.", "patch_merger.before_rms."),
    (".proj.0.", ".proj_conv."),
    (".proj.2.", ".proj_out."),
)
"""The names of the encoder's parts in released checkpoints, and in transformers."""
USUAL_SECTIONS = (12, 10, 10)
"""How many of a head's pairs turn by time, by height and by width."""


def streams_config(context: BuildContext) -> StreamsConfig:
    """Return the sizes of a model's hyper-connections."""
    settings = context.model.hf_config
    return StreamsConfig(
        count=int(settings["hc_mult"]),
        magnitude=float(settings["hc_magnitude"]),
        eps=float(settings["hc_eps"]),
        norm_eps=float(settings["rms_norm_eps"]),
    )


class SinkAttention(LatentAttention, DividedVectors):
    """Latent attention with sinks, whose heads' outputs are gated."""

    def build_queries(self, context: BuildContext, name: str) -> None:
        """Create the matrices of queries and gates, and the sinks, in float32 as kernels take them.
        Mutates: self"""
        super().build_queries(context, name)
        heads, group = context.model.num_heads, tensor_group(context.rank)
        width = heads * self.config.value_size
        hidden = context.model.hidden_size
        self.head_gate = ColumnParallelLinear(context, f"{name}.gate_proj", hidden, width)
        local = self.spec.num_heads
        part = Part(name="", full=heads, local=local, start=group.rank * local)
        self.add_vector(context, "sinks", (part,), dtype=torch.float32)
        self._open = OutputGate(context)

    def forward(
        self, x: torch.Tensor, rope: Rope, residual: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Shapes: x, residual [T, E] -> [T, E]"""
        return self.o_proj(self._open(self.attended(x, rope), self.head_gate(x)), residual)


class IndexedSinkAttention(SinkAttention, IndexedAttention):
    """The same over the tokens that an indexer picks."""


class HYV4Layer(IndexedLayer):
    """A layer whose two parts read sums of the streams, and add to each."""

    attention_class = SinkAttention
    indexed_class = IndexedSinkAttention

    def __init__(self, context: BuildContext, name: str, config: DecoderConfig, layer: int) -> None:
        super().__init__(context, name, config, layer)
        plain, streams = unquantized(context), streams_config(context)
        self.attn_hc = HyperConnection(plain, f"{name}.attn_hc", streams)
        self.ffn_hc = HyperConnection(plain, f"{name}.ffn_hc", streams)
        self._spread = streams.count if layer == 0 else 0

    def latent_sizes(self, context: BuildContext) -> LatentConfig:
        """Return the sizes of the layer's attention."""
        return replace(latent_config(context), is_interleaved=self.is_interleaved)

    def indexer_config(self, settings: Mapping[str, Any], query_rank: int) -> IndexerConfig:
        """Return the sizes of an indexer, which turns the last numbers of a head."""
        return replace(
            super().indexer_config(settings, query_rank),
            turned_last=int(settings["qk_rope_head_dim"]),
            norm_eps=float(settings["rms_norm_eps"]),
        )

    def has_indexer(self, settings: Mapping[str, Any], layer: int) -> bool:
        """Return whether a layer has its own indexer: as listed, or the first, and every fourth
        from the second on."""
        if settings.get("indexer_types") is not None:
            return super().has_indexer(settings, layer)
        return layer == 0 or layer % 4 == 1

    def unquantized(self, context: BuildContext) -> BuildContext:
        """Return the context of the matrix of an indexer's weights: it computes in float32."""
        return in_float32(super().unquantized(context))

    def build_mlp(
        self, context: BuildContext, name: str, config: DecoderConfig, layer: int
    ) -> nn.Module:
        """Return the layer's feed-forward part: one MLP in the first layer, unless config.json
        lists the layers."""
        settings = context.model.hf_config
        listed = settings.get("mlp_layer_types")
        if (listed[layer] == "dense") if listed is not None else layer == 0:
            return DecoderLayer.build_mlp(self, context, name, config, layer)
        inner = int(settings["moe_intermediate_size"])
        return ClampedMoE(
            context,
            name,
            num_experts=int(settings["n_routed_experts"]),
            rule=sigmoid_rule(settings),
            inner=inner,
            act=config.hidden_act,
            shared_inner=int(settings["n_shared_experts"]) * inner,
            limit=float(settings["swiglu_limit"]),
        )

    def forward(self, x: torch.Tensor, ropes: Mapping[str, Rope]) -> torch.Tensor:
        """Shapes: x [T, M E], of the first layer [T, E] -> [T, M E]"""
        if self._spread:
            x = spread(self._spread, x)
        read, written = self.attn_hc(x)
        attended = self.self_attn(self.input_layernorm(read), ropes[self.rope])
        x = self.attn_hc.added(x, written, attended)
        read, written = self.ffn_hc(x)
        return self.ffn_hc.added(x, written, self.mlp(self.post_attention_layernorm(read)))


class ClampedMoE(DeepseekMoE):
    """DeepSeek's mixture, the picked experts' gates clamped; the shared one's are not."""

    def __init__(
        self, context: BuildContext, name: str, *, act: str, limit: float, **settings: Any
    ) -> None:
        super().__init__(
            context,
            name,
            act=act,
            picked_act=clamped(act, limit),
            routes_in_float32=True,
            has_correction_bias=True,
            **settings,
        )


class HYV4Model(DeepseekModel):
    """A decoder of streams, which are joined after the last layer."""

    def __init__(
        self,
        context: BuildContext,
        name: str,
        config: DecoderConfig,
        layer_class: type[DecoderLayer] = HYV4Layer,
    ) -> None:
        super().__init__(context, name, config, layer_class)
        streams = streams_config(context)
        self.stage.width = streams.count * context.model.hidden_size
        plain = unquantized(context)
        self.norm = self.stage.last(lambda: JoinedNorm(plain, f"{name}.hc_head", streams))


class HYV4ForCausalLM(DeepseekV32ForCausalLM):
    """Hunyuan 4 with a head, without its drafter."""

    info = Info(
        summary="Hunyuan 4 (sparse latent attention with sinks, streams, mixture of experts)",
        source="https://huggingface.co/tencent/Hy4-preview",
    )
    model_class = HYV4Model
    layer_class = HYV4Layer

    def weight_map(self) -> WeightMap:
        """Return the names: released checkpoints do not use transformers'."""
        usual = super().weight_map()
        return replace(usual, renames=(*usual.renames, *RENAMES), ignored=(*usual.ignored, DRAFTER))


class HYV4VLLayer(HYV4Layer):
    """A layer of the text part: turned pairs are neighbours, and the latents' norms have the
    model's eps."""

    is_interleaved = True

    def latent_sizes(self, context: BuildContext) -> LatentConfig:
        """Return the sizes of the layer's attention."""
        eps = float(context.model.hf_config["rms_norm_eps"])
        return replace(super().latent_sizes(context), norm_eps=eps)


class HYV4VLModel(HYV4Model):
    """A decoder whose pairs turn by time, height or width, in turn."""

    def build_rotaries(self, context: BuildContext, layer_types: set[str]) -> nn.ModuleDict:
        """Return one rotary table for all layers, of the part that is turned."""
        plain = latent_rope(context, int(context.model.hf_config["qk_rope_head_dim"]))
        values = {SECTIONS: USUAL_SECTIONS, **plain.values, "mrope_interleaved": True}
        rotary = SpatialRotary(replace(plain, values=values), context.device)
        return nn.ModuleDict({layer_type: rotary for layer_type in sorted(layer_types)})


class HYV4VLForCausalLM(HYV4ForCausalLM):
    """The text part of Hunyuan 4 with its head. (Text has one position a token, in all three
    directions.)"""

    info = Info(
        summary="the text part of Hunyuan 4 (Hy4)", source="https://huggingface.co/tencent/Hy4"
    )
    model_class = HYV4VLModel
    layer_class = HYV4VLLayer

    def weight_map(self) -> WeightMap:
        """Return the names, without the encoder's."""
        usual = text_part(super().weight_map())
        return replace(usual, ignored=(*usual.ignored, ENCODER))


class HYV4VLForConditionalGeneration(MediaModel):
    """Hunyuan 4 as it is released: a vector ends each row of an image's patches."""

    info = Info(summary="Hunyuan 4 (Hy4)", source="https://huggingface.co/tencent/Hy4")
    text_class: ClassVar[str] = "HYV4VLForCausalLM"
    text_parts: ClassVar[tuple[str, ...]] = (*TEXT_PARTS, "hc_head")

    def weight_map(self) -> WeightMap:
        """Return the names, also the released ones of the encoder."""
        usual = super().weight_map()
        tower = WeightMap(renames=TOWER_RENAMES)
        return replace(
            usual,
            prefixes=((ENCODER, TOWER), *usual.prefixes),
            ignored=(*usual.ignored, DRAFTER),
            parts={**usual.parts, TOWER: tower},
        )

    def prompt_positions(
        self, num_tokens: int, parts: Sequence[PartPlace]
    ) -> tuple[torch.Tensor, int] | None:
        """Return the positions of a prompt, whose images' rows are one wider. Shapes: [3, N]"""
        return super().prompt_positions(num_tokens, [_with_row_ends(part) for part in parts])


def _with_row_ends(part: PartPlace) -> PartPlace:
    """Return a part with a place after each row of patches."""
    if not part.shape:
        return part
    times, height, width = part.shape
    return msgspec.structs.replace(part, shape=(times, height, width + 1))

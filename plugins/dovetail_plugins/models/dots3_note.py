"""Dots3 Note: latent attention with gated heads, in most layers within a window, with heads and
latents of other sizes than in the layers where an indexer picks tokens; experts in all layers but
the first.

With c the normed latent of E_c numbers (queries have one of their own), of E hidden ones:

    c' = sqrt(E / E_c) c,   key_R = turned(norm(W x))
    h = o_proj(attention(x) sigmoid(g_proj x))     # one gate for each head

The factors of the latents are those of scores, and of keys and values: an indexer picks the same
without. Source: Dots Studio, Dots3 Note, 2026, as transformers has it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import torch
from msgspec import structs
from torch import nn

from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.model import BuildContext, WeightMap
from dovetail.interfaces.plugin import Info
from dovetail.layers.attention.latent import LatentConfig
from dovetail.layers.attention.rotary import Rope, Rotary, rope_settings
from dovetail.layers.decoder import DecoderConfig, DecoderLayer, usual_config
from dovetail.layers.linear import ColumnParallelLinear
from dovetail.layers.native import runs_natively
from dovetail.layers.norm import RMSNorm
from dovetail.layers.opaque import is_traced
from dovetail_kernels import qk_rotary
from dovetail_kernels.qk_rotary.native import QkRotary
from dovetail_plugins.layers.attention.indexer import Indexer, IndexerConfig
from dovetail_plugins.layers.attention.output_gate import open_heads
from dovetail_plugins.layers.attention.windowed_latents import (
    LatentPack,
    PackedIndexed,
    PackedLatents,
    PackedWindow,
)
from dovetail_plugins.model_types.dots3_note import (
    INDEXED,
    SLIDING,
    is_sparse,
    layer_sizes,
    layer_types,
    packs,
    ropes,
)
from dovetail_plugins.models._media import MediaModel
from dovetail_plugins.models._moe import sigmoid_rule
from dovetail_plugins.models._text_part import text_part
from dovetail_plugins.models.deepseek import (
    DeepseekLayer,
    DeepseekModel,
    DeepseekMoE,
    DeepseekV32ForCausalLM,
    unquantized,
    uses_indexer,
)

SOUND = "audio_"
"""The beginning of the names of the sound encoder's parts."""
RELEASED = (
    ("vision_encoder.", "encoder.vision_tower."),
    ("audio_encoder.audio_adapter.", "encoder.audio_tower.adapter."),
    ("audio_encoder.dots_encoder.speech_encoder.", "encoder.audio_tower."),
)
SIGHT_RENAMES = (
    ("post_trunk_norm.", "norm."),
    ("adapter.", "merger."),
    (".norm_1.", ".norm1."),
    (".norm_2.", ".norm2."),
    (".fc1.", ".gate_proj."),
    (".fc2.", ".down_proj."),
    (".fc3.", ".up_proj."),
    (".gate_weight", ".gate.weight"),
    (".router_bias", ".e_score_correction_bias"),
)
SOUND_RENAMES = (
    (".fc1.", ".mlp.gate_up_proj."),
    (".fc2.", ".mlp.down_proj."),
    ("adapter.proj.0.", "adapter.norm."),
    ("adapter.proj.1.", "adapter.fc1."),
    ("adapter.proj.3.", "adapter.fc2."),
    ("conv2d1.", "conv_stem.convs.0."),
    ("conv2d2.", "conv_stem.convs.1."),
    ("conv2d3.", "conv_stem.convs.2."),
    ("conv_out.", "conv_stem.conv_out."),
    (".out_proj.", ".o_proj."),
    (".self_attn_layer_norm.", ".input_layernorm."),
    (".final_layer_norm.", ".post_attention_layernorm."),
)
"""Names of released checkpoints, and of transformers: the encoders, and within each."""


class GatedLatents(PackedLatents):
    """Latent attention whose heads are gated, and whose rotated keys are normed."""

    def build_queries(self, context: BuildContext, name: str) -> None:
        """Create the matrices of queries and gates, and the keys' norm. Mutates: self"""
        super().build_queries(context, name)
        config, model = self.config, context.model
        self.g_proj = ColumnParallelLinear(
            context, f"{name}.g_proj", model.hidden_size, model.num_heads
        )
        self.k_rope_only_layernorm = RMSNorm(context, config.rope_size, eps=config.norm_eps)
        self._norm_key: QkRotary | None = None
        if runs_natively(qk_rotary.OP, context):
            self._norm_key = QkRotary(1, 0, config.rope_size, eps=config.norm_eps)

    def forward(
        self, x: torch.Tensor, rope: Rope, residual: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Shapes: x, residual [T, E] -> [T, E]"""
        return self.o_proj(open_heads(self.attended(x, rope), self.g_proj(x)), residual)

    def _turned(
        self, q: torch.Tensor, latent: torch.Tensor, rope: Rope
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return queries rotated, and latents normed and rotated. Mutates: both, if there is a
        kernel. Shapes: q [T, H (N + R)], latent [T, L + R]"""
        norm, size = self.k_rope_only_layernorm, self.config.latent_size
        if self._norm_key is not None and not is_traced():
            none = rope.cos[:, :0]
            self._norm_key(latent[:, size:], none, none, rope.positions, q_weight=norm.weight)
        else:
            plain, key = latent.tensor_split((size,), dim=-1)
            latent = torch.cat([plain, norm(key)], dim=-1)
        return super()._turned(q, latent, rope)


class GatedIndexed(GatedLatents, PackedIndexed):
    """The same over the tokens that an indexer picks."""


class GatedWindow(GatedLatents, PackedWindow):
    """The same within a window."""


def has_hidden(context: BuildContext) -> bool:
    """Return whether rows may be longer than the window of layers that have one."""
    settings = context.model.hf_config
    served = context.max_tokens or context.model.max_position_tokens
    return SLIDING in layer_types(settings) and served > int(settings["sliding_window"])


class Dots3NoteLayer(DeepseekLayer):
    """A layer of gated latent attention, and experts in all layers but the first ones."""

    def build_attention(
        self, context: BuildContext, name: str, config: DecoderConfig, layer: int
    ) -> nn.Module:
        """Return the layer's attention."""
        settings, hidden = context.model.hf_config, context.model.hidden_size
        own = layer_sizes(settings, layer)
        context = replace(context, model=structs.replace(context.model, num_heads=own.num_heads))
        factor = (hidden / own.query_rank) ** 0.5
        sizes = LatentConfig(
            query_rank=own.query_rank,
            latent_size=own.latent_size,
            plain_size=own.plain_size,
            rope_size=own.rope_size,
            value_size=own.value_size,
            scale=factor * (own.plain_size + own.rope_size) ** -0.5,
            norm_eps=float(settings["rms_norm_eps"]),
            has_bias=bool(settings["attention_bias"]),
            up_factor=(hidden / own.latent_size) ** 0.5,
        )
        if self.layer_type == SLIDING and has_hidden(context):
            return GatedWindow(context, name, sizes, int(settings["sliding_window"]))
        if self.layer_type != INDEXED or not uses_indexer(context):
            return GatedLatents(context, name, sizes)
        index = IndexerConfig(
            num_heads=int(settings["index_n_heads"]),
            head_size=own.index_size,
            num_picked=int(settings["index_topk"]),
            query_rank=own.query_rank,
            is_interleaved=True,
        )
        indexer = Indexer(context, unquantized(context), f"{name}.indexer", index)
        return GatedIndexed(context, name, sizes, index.spec, indexer)

    def build_mlp(
        self, context: BuildContext, name: str, config: DecoderConfig, layer: int
    ) -> nn.Module:
        """Return the layer's feed-forward part."""
        settings = context.model.hf_config
        if not is_sparse(settings, layer):
            return DecoderLayer.build_mlp(self, context, name, config, layer)
        shared = int(settings["shared_experts_intermediate_size"])
        return DeepseekMoE(
            context,
            name,
            num_experts=int(settings["n_routed_experts"]),
            rule=sigmoid_rule(settings),
            inner=int(settings["moe_intermediate_size"]),
            act=config.hidden_act,
            shared_inner=int(settings["n_shared_experts"]) * shared,
            routes_in_float32=True,
            has_correction_bias=True,
        )


class Dots3NoteModel(DeepseekModel):
    """A decoder whose layers' latents are cached together: those of all windowed layers in a few
    blocks, those of the others in one."""

    def __init__(
        self,
        context: BuildContext,
        name: str,
        config: DecoderConfig,
        layer_class: type[DecoderLayer] = Dots3NoteLayer,
    ) -> None:
        super().__init__(context, name, config, layer_class)
        numbers = context.rank.layers(context.model.num_layers)
        found = [m for m in self.layers.modules() if isinstance(m, PackedLatents)]
        own = dict(zip(numbers, found, strict=True))
        self.packs = nn.ModuleList(
            LatentPack(f"{name}.{p.name}", [own[n] for n in p.layers], p.window_tokens)
            for p in packs(context.model.hf_config, numbers)
        )

    def build_rotaries(self, context: BuildContext, layer_types: set[str]) -> nn.ModuleDict:
        """Return a rotary table for each kind of layer."""
        model, types = context.model, self.config.layer_types
        settings = {**model.hf_config, "rope_parameters": ropes(model.hf_config)}
        settings.pop("rope_scaling", None)
        context = replace(context, model=structs.replace(model, hf_config=settings))
        found = {}
        for kind in sorted(layer_types):
            size = layer_sizes(settings, types.index(kind)).rope_size
            one = replace(rope_settings(context, kind=kind), size=size)
            found[kind] = Rotary(one, context.device)
        return nn.ModuleDict(found)


class Dots3NoteForCausalLM(DeepseekV32ForCausalLM):
    """Dots3 Note's text model with a head, without its drafter."""

    info = Info(
        summary="Dots3 Note, text only (latent attention in windows and to picked tokens, experts)",
        source="https://huggingface.co/dots-studio/dots3-note-prev",
    )
    model_class = Dots3NoteModel
    layer_class = Dots3NoteLayer

    def __init__(self, options: Any, context: BuildContext) -> None:
        super().__init__(options, context)
        if has_hidden(context):
            self.no_graphs_because = "whether a window hides tokens depends on how long rows are"

    @classmethod
    def decoder_config(cls, model: ModelSpec) -> DecoderConfig:
        """Return the usual config."""
        return usual_config(model, layer_types=layer_types(model.hf_config), has_mlp_bias=False)

    def weight_map(self) -> WeightMap:
        """Return the names, without the encoders' and the drafter's: a layer after the last one, or
        parts of their own name."""
        usual = text_part(super().weight_map())
        after = f"model.layers.{len(self.model.config.layer_types)}."
        return replace(usual, ignored=(*usual.ignored, SOUND, "mtp.", after))


class Dots3NoteForConditionalGeneration(MediaModel):
    """Dots3 Note as it is released: an encoder with experts for images, and one for sound."""

    info = Info(summary="Dots3 Note", source="https://huggingface.co/dots-studio/dots3-note-prev")
    text_class: ClassVar[str] = "Dots3NoteForCausalLM"

    def weight_map(self) -> WeightMap:
        """Return the names, also the released ones of the encoders."""
        usual = super().weight_map()
        after = f"text.model.layers.{len(self.text.model.config.layer_types)}."
        return replace(
            usual,
            prefixes=(*RELEASED, *usual.prefixes),
            ignored=(*usual.ignored, "mtp.", after),
            parts={
                **usual.parts,
                "encoder.vision_tower.": WeightMap(renames=SIGHT_RENAMES),
                "encoder.audio_tower.": WeightMap(renames=SOUND_RENAMES),
            },
        )

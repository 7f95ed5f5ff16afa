"""Qwen4-Exp: three of four layers use the gated delta rule, the others gated attention to the pools
of tokens that an indexer picks; experts in each, and some layers add what n-grams of token ids say.
All read and write four streams of hidden states.

Source: Qwen team, Qwen4-Exp, 2026, as transformers has it; Yang et al., Gated Delta Networks, 2024
(arXiv 2412.06464).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import torch
from torch import nn

from dovetail.errors import ConfigError
from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.model import BuildContext, WeightMap
from dovetail.interfaces.plugin import Info
from dovetail.layers.attention.rotary import Rope, Rotary
from dovetail.layers.decoder import FULL, DecoderConfig, DecoderLayer
from dovetail_plugins.layers.attention.picked_pools import PoolsConfig
from dovetail_plugins.layers.attention.pooled_heads import HeadIndexer, PooledGatedAttention
from dovetail_plugins.layers.gated_residual import GatedConfig, GatedConnection, GatedRead
from dovetail_plugins.layers.hyper_connection import spread
from dovetail_plugins.layers.mixers.delta import DeltaMixer
from dovetail_plugins.layers.mixers.hybrid import LINEAR, HybridModel
from dovetail_plugins.layers.ngrams import NgramsConfig, NgramStreams
from dovetail_plugins.model_types.qwen3_next import delta_sizes
from dovetail_plugins.model_types.qwen4_exp import end_id, layer_types, ngram_layers
from dovetail_plugins.models._media import TEXT_PARTS
from dovetail_plugins.models.deepseek import unquantized
from dovetail_plugins.models.qwen2_moe import GatedSharedMoE
from dovetail_plugins.models.qwen2_vl import Qwen3_5ForConditionalGeneration
from dovetail_plugins.models.qwen3_5 import Qwen3_5ForCausalLM
from dovetail_plugins.models.qwen3_next import Qwen3NextLayer

MIXER = "hyper_connection_mixer"
GATES = ("silu", "sigmoid")
INDEXER = ("n_heads", "head_dim", "budget", "compress_ratio")


def streams_config(context: BuildContext) -> GatedConfig:
    """Return the sizes of a model's streams."""
    settings = context.model.hf_config
    return GatedConfig(
        count=int(settings["hc_count"]),
        rank=int(settings["hc_lowrank"]),
        norm_eps=float(settings["rms_norm_eps"]),
    )


def pools_config(context: BuildContext) -> PoolsConfig:
    """Return the sizes of the indexers. Raises: ConfigError for missing ones."""
    settings = context.model.hf_config
    missing = [f"indexer_{name}" for name in INDEXER if not settings.get(f"indexer_{name}")]
    if missing:
        raise ConfigError(
            f"layers that attend pick pools of tokens, and {', '.join(missing)} must say how.",
            where="config.json",
            fix="set all sizes of the indexer.",
        )
    heads, size, budget, ratio = (int(settings[f"indexer_{name}"]) for name in INDEXER)
    return PoolsConfig(
        num_heads=heads, head_size=size, pool_size=ratio, num_pools=max(1, budget // ratio)
    )


def ngrams_config(context: BuildContext, index: int) -> NgramsConfig:
    """Return the sizes of a layer's n-grams; `index` counts the layers that have some."""
    settings = context.model.hf_config
    end = end_id(settings)
    assert end is not None, "ngram_layers has checked it"
    return NgramsConfig(
        streams=int(settings["hc_count"]),
        max_ids=int(settings["ngram_size"]),
        heads=int(settings["heads_per_ngram"]),
        size=int(settings.get("ple_embed_dim") or context.model.hidden_size),
        least_rows=int(settings["ngram_vocab_size_base"]),
        multiple=int(settings["make_ngram_vocab_size_divisible_by"]),
        shards=int(settings["split_ngram_parts"]),
        index=index,
        seed=int(settings["seed"]),
        end=end,
        conv=int(settings["ple_conv_kernel_size"]),
        norm_eps=float(settings["rms_norm_eps"]),
    )


class Qwen4ExpLayer(Qwen3NextLayer):
    """One layer: what n-grams add, the delta rule or attention, and experts."""

    def __init__(self, context: BuildContext, name: str, config: DecoderConfig, layer: int) -> None:
        super().__init__(context, name, config, layer)
        del self.input_layernorm, self.post_attention_layernorm  # connections norm what they read
        plain, streams = unquantized(context), streams_config(context)
        self.attn_hyper_connection, self.mlp_hyper_connection = (
            GatedConnection(plain, f"{name}.{part}_hyper_connection", streams)
            for part in ("attn", "mlp")
        )
        with_ngrams = ngram_layers(context.model.hf_config)
        self.ple: NgramStreams | None = None
        if layer in with_ngrams:
            sizes = ngrams_config(context, with_ngrams.index(layer))
            self.ple = NgramStreams(context, plain, f"{name}.ple", sizes)
        self._spread = streams.count if layer == 0 else 0

    def build_mixer(self, context: BuildContext, name: str) -> nn.Module:
        """Return the delta rule. Raises: ConfigError for an output gate that is not known."""
        settings = context.model.hf_config
        sizes = delta_sizes(settings)
        gate = settings.get("output_gate_type") or sizes.act
        if gate not in GATES:
            raise ConfigError(
                f'linear attention has no output gate "{gate}" here.',
                where="config.json: output_gate_type",
                fix=f"known are {', '.join(GATES)}.",
            )
        return DeltaMixer(context, name, replace(sizes, gate=gate))

    def build_attention(
        self, context: BuildContext, name: str, config: DecoderConfig, layer: int
    ) -> nn.Module:
        """Return the layer's attention."""
        return PooledGatedAttention(context, name, config, layer, pools_config(context))

    def build_mlp(
        self, context: BuildContext, name: str, config: DecoderConfig, layer: int
    ) -> nn.Module:
        """Return the layer's router and experts."""
        return GatedSharedMoE(context, name, config)

    def forward(
        self, x: torch.Tensor, ropes: Mapping[str, Rope], token_ids: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Shapes: x [T, M E], of the first layer [T, E], token_ids [T] -> [T, M E]"""
        if self._spread:
            x = spread(self._spread, x)
        if self.ple is not None:
            assert token_ids is not None, "the model passes them to layers"
            x = self.ple(x, token_ids)
        read, written = self.attn_hyper_connection.apart(x)
        is_mixer = self.layer_type == LINEAR
        part = self.mixer(read) if is_mixer else self.self_attn(read, ropes[self.rope])
        x = self.attn_hyper_connection.added(x, written, part)
        read, written = self.mlp_hyper_connection.apart(x)
        return self.mlp_hyper_connection.added(x, written, self.mlp(read))


class Qwen4ExpModel(HybridModel):
    """A decoder of streams, which are read once more after the last layer."""

    def __init__(
        self,
        context: BuildContext,
        name: str,
        config: DecoderConfig,
        layer_class: type[DecoderLayer] = Qwen4ExpLayer,
    ) -> None:
        super().__init__(context, name, config, layer_class)
        streams, plain = streams_config(context), unquantized(context)
        self.stage.width = streams.count * context.model.hidden_size
        self.norm = self.stage.last(lambda: GatedRead(plain, f"{name}.{MIXER}", streams))
        rotary = self.rotaries[FULL]
        assert isinstance(rotary, Rotary), "layers that attend are rotated"
        for part in self.layers.modules():
            if isinstance(part, HeadIndexer):
                part.turn_by(rotary)

    def layer_arguments(
        self, x: torch.Tensor, token_ids: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """Return the tokens' ids. Shapes: x [T, E], both others [T]"""
        return (token_ids,)


class Qwen4ExpForCausalLM(Qwen3_5ForCausalLM):
    """Qwen4-Exp's text model with its head."""

    info = Info(
        summary="Qwen4-Exp, text only (delta rule, attention to picked pools, n-grams, streams)",
        source="https://huggingface.co/Qwen/Qwen4-Exp",
    )
    capabilities = Qwen3_5ForCausalLM.capabilities - {"vectors"}
    model_class = Qwen4ExpModel
    layer_class = Qwen4ExpLayer
    no_graphs_because = "whether an indexer picks depends on how long rows are"

    @classmethod
    def decoder_config(cls, model: ModelSpec) -> DecoderConfig:
        """Return Qwen3.5's config, with other names of layers that attend."""
        return replace(
            super().decoder_config(model),
            layer_types=layer_types(model.hf_config),
            rotary_share=1.0,
        )

    def weight_map(self) -> WeightMap:
        """Return the names, with the norm of the streams after the last layer."""
        usual = super().weight_map()
        return replace(usual, renames=(*usual.renames, (f"model.{MIXER}.", "model.norm.")))


class Qwen4ExpForConditionalGeneration(Qwen3_5ForConditionalGeneration):
    """Qwen4-Exp as it is released: Qwen3.5's encoder of images before the text model."""

    info = Info(summary="Qwen4-Exp", source="https://huggingface.co/Qwen/Qwen4-Exp")
    capabilities = Qwen3_5ForConditionalGeneration.capabilities - {"vectors"}
    text_class: ClassVar[str] = "Qwen4ExpForCausalLM"
    text_parts: ClassVar[tuple[str, ...]] = (*TEXT_PARTS, MIXER)

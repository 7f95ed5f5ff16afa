"""Whisper: an encoder of log-mel spectrograms of 30 s, and a decoder that writes the transcript.

For a spectrogram of M bands and 2 N frames:

    x = gelu(conv1(spectrogram))            # [E, 2 N]
    x = gelu(conv2(x)).T + positions        # every other frame: [N, E]
    x = layers(x), then a norm              # as BERT's, but pre-norm

Keys have no bias. Source: Radford et al., 2022
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import nn

from dovetail.interfaces.model import BuildContext, WeightMap
from dovetail.interfaces.plugin import Info
from dovetail.layers.dtypes import dtype_of
from dovetail.layers.embedding import PositionEmbedding, VocabParallelEmbedding
from dovetail.layers.linear import Linear, MergedColumnParallelLinear, QKVParallelLinear
from dovetail.layers.norm import LayerNorm
from dovetail_plugins.layers.attention.dense import use_items
from dovetail_plugins.layers.cross_decoder import (
    CrossDecoderConfig,
    EncoderDecoder,
    encoder_context,
    of_layers,
)
from dovetail_plugins.layers.encoder import Around, EncoderConfig, EncoderLayer
from dovetail_plugins.models.bart import DECODER_LAYER, ENCODER_LAYER, FUSED, WordsAndPositions

EPS = 1e-5
SPECTROGRAM = "input_features"
"""The feature that the encoder reads. Shapes: [M, 2 N] float32"""
KERNEL = 3


class KeylessBias(Linear):
    """Matrices in one, of which that of keys has no bias."""

    def _build_bias(self) -> nn.Parameter:
        bias = super()._build_bias()
        bias.data.zero_()
        return bias

    def pieces(self, leaf: str) -> set[str]:
        """Return the pieces that a checkpoint has: no bias of keys."""
        return super().pieces(leaf) - ({"k"} if leaf == "bias" else set())


class KeylessQKV(KeylessBias, QKVParallelLinear):
    """Queries, keys and values."""


class KeylessKV(KeylessBias, MergedColumnParallelLinear):
    """Keys and values."""


class Convolution(nn.Module):
    """A convolution over frames, and GELU. Shapes: weight [O, I, 3], bias [O]"""

    def __init__(self, context: BuildContext, in_size: int, size: int, stride: int) -> None:
        super().__init__()
        dtype, device = dtype_of(context.model.dtype), context.device
        self.stride = stride
        weight = torch.empty(size, in_size, KERNEL, dtype=dtype, device=device)
        self.weight = nn.Parameter(weight, requires_grad=False)
        bias = torch.empty(size, dtype=dtype, device=device)
        self.bias = nn.Parameter(bias, requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Shapes: x [I, frames] -> [O, frames / stride]"""
        return F.gelu(F.conv1d(x, self.weight, self.bias, self.stride, padding=1))


class WhisperEncoder(nn.Module):
    """Convolutions, layers and the last norm."""

    def __init__(self, context: BuildContext, name: str) -> None:
        super().__init__()
        model, facts = context.model, context.model.hf_config
        size = model.hidden_size
        self.conv1 = Convolution(context, int(facts["num_mel_bins"]), size, 1)
        self.conv2 = Convolution(context, size, size, 2)
        count = int(facts["max_source_positions"])
        self.positions = PositionEmbedding(context, count, size)
        config = EncoderConfig(
            inner_size=int(facts["encoder_ffn_dim"]),
            num_positions=0,
            num_types=0,
            hidden_act=str(facts["activation_function"]),
            norm_eps=EPS,
            has_norms_before=True,
            qkv_class=KeylessQKV,
        )
        self.layers = nn.ModuleList(
            EncoderLayer(context, f"{name}.layers.{i}", config, i) for i in range(model.num_layers)
        )
        self.final_norm = LayerNorm(context, size, eps=EPS)

    def forward(self, spectrograms: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the rows of all spectrograms, one after another. Shapes: [M, 2 N] -> [., E]"""
        items = [self._frames(one.to(self.conv1.weight.dtype)) for one in spectrograms]
        x, around = torch.cat(items), Around()
        with use_items([len(item) for item in items]):
            for layer in self.layers:
                x = layer(x, around)
        return self.final_norm(x)

    def _frames(self, spectrogram: torch.Tensor) -> torch.Tensor:
        """Return an item's first states. Shapes: spectrogram [M, 2 N] -> [N, E]"""
        x = self.conv2(self.conv1(spectrogram)).T.contiguous()
        return self.positions(torch.arange(len(x), device=x.device), x)


class WhisperForConditionalGeneration(EncoderDecoder):
    """Whisper."""

    info = Info(summary="Whisper", source="https://arxiv.org/abs/2212.04356")
    capabilities: ClassVar[frozenset[str]] = frozenset({"tensor_parallel", "encoder"})
    whole_because = "the times of words are read from heads of all layers together"

    @classmethod
    def decoder_config(cls, context: BuildContext) -> CrossDecoderConfig:
        """Return how the decoder differs, read from its config."""
        facts = context.model.hf_config
        return CrossDecoderConfig(
            num_layers=int(facts["decoder_layers"]),
            inner_size=int(facts["decoder_ffn_dim"]),
            hidden_act=str(facts["activation_function"]),
            norm_eps=EPS,
            has_norms_before=True,
            is_tied=facts.get("tie_word_embeddings") is not False,
            qkv_class=KeylessQKV,
            kv_class=KeylessKV,
        )

    def build_encoder(
        self, options: Any, context: BuildContext, words: VocabParallelEmbedding
    ) -> nn.Module:
        """Return the encoder of spectrograms."""
        facts = context.model.hf_config
        own = encoder_context(
            context,
            num_layers=int(facts["encoder_layers"]),
            num_heads=int(facts["encoder_attention_heads"]),
        )
        return WhisperEncoder(own, "encoder")

    def build_embed(self, context: BuildContext, words: VocabParallelEmbedding) -> nn.Module:
        """Return words and positions."""
        model = context.model
        count = int(model.hf_config["max_target_positions"])
        return WordsAndPositions(words, PositionEmbedding(context, count, model.hidden_size), None)

    def encode(
        self, kind: str, features: Sequence[Mapping[str, torch.Tensor]]
    ) -> Sequence[torch.Tensor]:
        """Return the encoder's output for spectrograms. Shapes: each [N, E]"""
        output: torch.Tensor = self.encoder([one[SPECTROGRAM] for one in features])
        return output.split([one[SPECTROGRAM].shape[1] // 2 for one in features])

    def weight_map(self) -> WeightMap:
        """Return the names."""
        num_encoder_layers = len(list(self.encoder.get_submodule("layers").children()))
        return WeightMap(
            prefixes=(("model.", ""), ("proj_out.", "lm_head.")),
            renames=(
                ("decoder.embed_tokens.", "words."),
                ("encoder.embed_positions.", "encoder.positions."),
                ("decoder.embed_positions.", "decoder.embed.positions."),
                ("coder.layer_norm.", "coder.final_norm."),
                *of_layers("encoder.layers.", "encoder.layers.", num_encoder_layers,
                           ENCODER_LAYER),
                *of_layers("decoder.layers.", "decoder.layers.", len(self.decoder.layers),
                           DECODER_LAYER),
            ),
            fused=FUSED,
            tied=self.tied_names(),
        )  # fmt: skip

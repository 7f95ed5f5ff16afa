"""The decoder of encoder-decoder models: layers of self attention, cross attention and an MLP.

With pre-norm (`has_norms_before`) a layer computes, for the T tokens of a step:

    x = x + self_attn(self_norm(x))
    x = x + cross_attn(cross_norm(x))       # over the encoder's output, see cross_attention.py
    x = x + mlp(mlp_norm(x))

Otherwise each norm follows its sum. A family derives from `EncoderDecoder`, says in a
`CrossDecoderConfig` how it differs, and makes its encoder.
Sources: Vaswani et al. 2017; Raffel et al., T5, 2019; Lewis et al., BART, 2019
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import msgspec
import torch
from torch import nn

from dovetail.interfaces.attention import AttentionSpec
from dovetail.interfaces.data.spec import NOTHING
from dovetail.interfaces.model import BuildContext, Model
from dovetail.layers.attention import Attention
from dovetail.layers.decoder import GatedMLP, PlainMLP
from dovetail.layers.embedding import VocabParallelEmbedding
from dovetail.layers.linear import MergedColumnParallelLinear, QKVParallelLinear, attention_linears
from dovetail.layers.logits import LogitsHead
from dovetail.layers.media import blocks_of
from dovetail.layers.norm import LayerNorm, RMSNorm
from dovetail.layers.stages import Stage
from dovetail_plugins.layers.attention.cross import CrossAttention, cross_rows
from dovetail_plugins.layers.attention.dense import use_items

HEAD = "lm_head"
HEAD_WEIGHT, WORDS = f"{HEAD}.weight", "words.weight"
TOKEN_IDS = "token_ids"
"""The feature that a text encoder reads. Shapes: [S] int64"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossDecoderConfig:
    """How a family's decoder differs. `scale` of self and cross attention: None for one over the
    root of the head size. `is_tied`: the head multiplies by the table of words. Its rows are
    multiplied by `embedding_scale` on lookup, hidden states by `logit_scale` before the head."""

    num_layers: int
    inner_size: int
    hidden_act: str
    norm_eps: float
    is_gated: bool = False
    has_norms_before: bool = False
    has_rms_norms: bool = False
    has_bias: bool = True
    scale: float | None = None
    is_tied: bool = True
    embedding_scale: float = 1.0
    logit_scale: float = 1.0
    qkv_class: type[QKVParallelLinear] = QKVParallelLinear
    kv_class: type[MergedColumnParallelLinear] = MergedColumnParallelLinear

    def norm(self, context: BuildContext) -> nn.Module:
        """Return a norm over the hidden axis."""
        norm = RMSNorm if self.has_rms_norms else LayerNorm
        return norm(context, context.model.hidden_size, eps=self.norm_eps)


class CausalAttention(nn.Module):
    """Attention to a row's own tokens so far."""

    def __init__(self, context: BuildContext, name: str, config: CrossDecoderConfig) -> None:
        super().__init__()
        size = context.model.head_size
        self.qkv_proj, self.o_proj = attention_linears(
            context,
            name,
            qkv_bias=config.has_bias,
            out_bias=config.has_bias,
            qkv_class=config.qkv_class,
        )
        spec = AttentionSpec(
            num_heads=self.qkv_proj.num_heads,
            num_kv_heads=self.qkv_proj.num_kv_heads,
            head_size=size,
            scale=size**-0.5 if config.scale is None else config.scale,
        )
        self.attn = Attention(name, spec)

    def forward(
        self, x: torch.Tensor, residual: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        """Return residual plus attention's output. Shapes: x, residual [T, E] -> [T, E]"""
        q, k, v = self.qkv_proj.forward_split(x)
        return self.o_proj(self.attn(q, k, v, bias=bias), residual)


class CrossDecoderLayer(nn.Module):
    """One layer."""

    def __init__(self, context: BuildContext, name: str, config: CrossDecoderConfig) -> None:
        super().__init__()
        model = context.model
        self.self_attn = CausalAttention(context, f"{name}.self_attn", config)
        self.cross_attn = CrossAttention(
            context,
            f"{name}.cross_attn",
            max_rows=cross_rows(context),
            scale=model.head_size**-0.5 if config.scale is None else config.scale,
            bias=config.has_bias,
            encoder_size=model.hidden_size,
            kv_class=config.kv_class,
        )
        mlp = GatedMLP if config.is_gated else PlainMLP
        inner, act = config.inner_size, config.hidden_act
        self.mlp = mlp(context, f"{name}.mlp", inner=inner, act=act, bias=config.has_bias)
        self.self_norm, self.cross_norm = config.norm(context), config.norm(context)
        self.mlp_norm = config.norm(context)
        self.has_norms_before = config.has_norms_before

    def own_bias(self, shared: torch.Tensor | None) -> torch.Tensor | None:
        """Return self attention's score bias by position: the one that layers share."""
        return shared

    def forward(self, x: torch.Tensor, shared_bias: torch.Tensor | None) -> torch.Tensor:
        """Shapes: x [T, E], shared_bias [H, 2 M - 1] -> [T, E]"""
        bias = self.own_bias(shared_bias)
        if self.has_norms_before:
            x = self.self_attn(self.self_norm(x), x, bias)
            x = self.cross_attn(self.cross_norm(x), x)
            return self.mlp(self.mlp_norm(x), x)
        x = self.self_norm(self.self_attn(x, x, bias))
        x = self.cross_norm(self.cross_attn(x, x))
        return self.mlp_norm(self.mlp(x, x))


class CrossDecoder(nn.Module):
    """Layers between the first states (`embed`) and the last norm, if there is one."""

    def __init__(
        self,
        context: BuildContext,
        name: str,
        config: CrossDecoderConfig,
        layer_class: type[CrossDecoderLayer],
        stage: Stage,
        embed: nn.Module,
        position_bias: nn.Module | None,
    ) -> None:
        super().__init__()
        self._stage = [stage]  # the whole model's
        self.embed, self.position_bias = embed, position_bias
        self.layers = stage.layers(lambda i: layer_class(context, f"{name}.layers.{i}", config))
        has_norm = config.has_norms_before
        self.final_norm = stage.last(lambda: config.norm(context)) if has_norm else None

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return the final hidden states. Shapes: token_ids, positions [T] -> [T, E]"""
        (stage,) = self._stage
        x = self.embed(token_ids, positions) if stage.is_first else stage.received(token_ids)
        bias = None if self.position_bias is None else self.position_bias.table
        for layer in self.layers:
            x = layer(x, bias)
        return x if self.final_norm is None else self.final_norm(x)


class EncoderDecoder(nn.Module, Model):
    """Base class of encoder-decoder plugins: an encoder, and a decoder with a head that attends to
    its output. Stages of a pipeline divide the decoder's layers; each has the encoder, because
    every layer of the decoder attends to its output."""

    capabilities: ClassVar[frozenset[str]] = frozenset(
        {"tensor_parallel", "pipeline_parallel", "encoder"}
    )
    layer_class: ClassVar[type[CrossDecoderLayer]] = CrossDecoderLayer

    def __init__(self, options: Any, context: BuildContext) -> None:
        super().__init__()
        model = context.model
        config = self.decoder_config(context)
        self.config = config
        counted = msgspec.structs.replace(model, num_layers=config.num_layers)
        self.stage = stage = Stage(replace(context, model=counted))
        words = VocabParallelEmbedding(
            context,
            model.vocab_size,
            model.hidden_size,
            head=HEAD if config.is_tied else None,
            factor=config.embedding_scale,
        )
        self.words = words
        self.encoder = self.build_encoder(options, context, words)
        self.decoder = CrossDecoder(
            context,
            "decoder",
            config,
            self.layer_class,
            stage,
            stage.first(lambda: self.build_embed(context, words)),
            self.build_position_bias(context),
        )
        self.lm_head = stage.last(
            lambda: LogitsHead(
                context,
                HEAD,
                model.vocab_size,
                model.hidden_size,
                tied=words if config.is_tied else None,
            )
        )

    def tied_names(self) -> dict[str, str]:
        """Return the other names by which a checkpoint may store the word table."""
        names = [f"{part}.embed_tokens.weight" for part in ("encoder", "decoder")]
        return dict.fromkeys([*names, *([HEAD_WEIGHT] if self.config.is_tied else ())], WORDS)

    @classmethod
    def decoder_config(cls, context: BuildContext) -> CrossDecoderConfig:
        """Return how this family's decoder differs, read from its config."""
        raise NotImplementedError

    def build_encoder(
        self, options: Any, context: BuildContext, words: VocabParallelEmbedding
    ) -> nn.Module:
        """Return the encoder; one of texts looks its tokens up among `words`."""
        raise NotImplementedError

    def build_embed(self, context: BuildContext, words: VocabParallelEmbedding) -> nn.Module:
        """Return the module that makes the decoder's first states of (token_ids, positions)."""
        raise NotImplementedError

    def build_position_bias(self, context: BuildContext) -> nn.Module | None:
        """Return the decoder layers' score bias by relative position: none."""
        return None

    def encode(
        self, kind: str, features: Sequence[Mapping[str, torch.Tensor]]
    ) -> Sequence[torch.Tensor]:
        """Return the encoder's output for texts. Shapes: each [S, E]"""
        items = [one[TOKEN_IDS] for one in features]
        lens = [len(item) for item in items]
        positions = [torch.arange(len(item), device=item.device) for item in items]
        with use_items(lens):
            output: torch.Tensor = self.encoder(torch.cat(items), torch.cat(positions))
        return output.split(lens)

    def encoder_blocks(self) -> Sequence[nn.Module]:
        """Return the encoder's blocks, before which a pass may pause."""
        return blocks_of(self.encoder)

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return the decoder's hidden states. Shapes: token_ids, positions [T] -> [T, E]"""
        return self.decoder(token_ids, positions)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return logits of selected tokens. Shapes: hidden [S, E] -> [S, V]"""
        scale = self.config.logit_scale
        return self.lm_head(hidden if scale == 1.0 else hidden * scale)


def encoder_context(context: BuildContext, *, num_layers: int, num_heads: int) -> BuildContext:
    """Return the context in which a decoder's encoder is built."""
    model = context.model
    own = msgspec.structs.replace(
        model,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_heads,
        is_causal=False,
        head=NOTHING,
    )
    return replace(context, model=own)


def of_layers(
    old: str, new: str, count: int, names: Mapping[str, str]
) -> tuple[tuple[str, str], ...]:
    """Return the renames of parts of `count` numbered layers: the same names mean one thing in an
    encoder and another in a decoder."""
    return tuple(
        (f"{old}{i}.{was}.", f"{new}{i}.{now}.") for i in range(count) for was, now in names.items()
    )

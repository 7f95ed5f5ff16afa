"""Shared by families whose last layers read the keys and values of earlier ones: attention with
normed heads (values without weights), and a decoder that skips tokens there."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import nn

from dovetail.interfaces.attention import AttentionSpec
from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.model import BuildContext, WeightMap
from dovetail.layers.attention import Attention
from dovetail.layers.attention.rotary import HeadRotary, Rope
from dovetail.layers.context import keep_inner
from dovetail.layers.decoder import SLIDING, DecoderConfig, DecoderForCausalLM, DecoderLayer
from dovetail.layers.embedding import VocabParallelEmbedding
from dovetail.layers.linear import QKVParallelLinear, RowParallelLinear
from dovetail.layers.media import with_media
from dovetail.layers.norm import BareRMSNorm, RMSNorm
from dovetail.layers.stages import AbsentStage
from dovetail_plugins.layers.attention.shared import (
    SharedAttention,
    drawn_tokens,
    find_sources,
    spread,
)
from dovetail_plugins.layers.post_norm import SandwichLayer
from dovetail_plugins.models._layer_inputs import NAMES, LayerInputs
from dovetail_plugins.models.gemma import gemma_config
from dovetail_plugins.models.gemma3 import Gemma3Model


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """The heads of one layer. `source` is the number of the layer that keeps its keys and values;
    with `keys_are_values` one matrix makes both."""

    num_kv_heads: int
    head_size: int
    source: int
    keys_are_values: bool = False


class SharingAttention(nn.Module):
    """Rotary attention over its own keys and values, or over those of an earlier layer."""

    attention_class: ClassVar[type[Attention]] = Attention

    def __init__(
        self, context: BuildContext, name: str, config: DecoderConfig, layer: int, heads: Heads
    ) -> None:
        super().__init__()
        model, size = context.model, heads.head_size
        self.keeps = heads.source == layer
        self.keys_are_values = self.keeps and heads.keys_are_values
        self.qkv_proj = QKVParallelLinear(
            context,
            f"{name}.qkv_proj",
            model.hidden_size,
            num_heads=model.num_heads,
            num_kv_heads=heads.num_kv_heads,
            head_size=size,
            bias=config.has_qkv_bias,
            holds="q" if not self.keeps else "qk" if heads.keys_are_values else "qkv",
        )
        self.o_proj = RowParallelLinear(
            context,
            f"{name}.o_proj",
            model.num_heads * size,
            model.hidden_size,
            bias=config.has_out_bias,
        )
        self.q_norm = config.norm(context, size, eps=config.norm_eps)
        self.k_norm = config.norm(context, size, eps=config.norm_eps) if self.keeps else None
        self.v_norm = BareRMSNorm(context, size, eps=config.norm_eps) if self.keeps else None
        self.rotate = HeadRotary(
            context,
            num_heads=self.qkv_proj.num_heads,
            num_kv_heads=self.qkv_proj.num_kv_heads if self.keeps else 0,
            head_size=size,
            q_norm=self.q_norm,
            k_norm=self.k_norm,
        )
        self.attn = self._attention(name, config, layer, heads)

    def _attention(
        self, name: str, config: DecoderConfig, layer: int, heads: Heads
    ) -> Attention | SharedAttention:
        """Return the attention over this layer's keys and values, or over another's."""
        spec = AttentionSpec(
            num_heads=self.qkv_proj.num_heads,
            num_kv_heads=self.qkv_proj.num_kv_heads,
            head_size=heads.head_size,
            scale=config.query_scale or heads.head_size**-0.5,
            window_tokens=config.window_tokens if config.layer_types[layer] == SLIDING else None,
            soft_cap=config.attn_logit_softcap,
        )
        if self.keeps:
            return self.attention_class(name, spec)
        shares = name.replace(f".layers.{layer}.", f".layers.{heads.source}.")
        return SharedAttention(name, spec, shares=shares)

    def forward(
        self, x: torch.Tensor, rope: Rope | None, residual: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Shapes: x, residual [T, E] -> [T, E]"""
        qkv = self.qkv_proj(x)
        if self.keys_are_values:
            qkv = torch.cat([qkv, qkv[:, -self.qkv_proj.spec.out_sizes[1] :]], dim=-1)
        q, k, v = self.rotate(qkv, rope)
        if self.v_norm is None:
            return self.o_proj(self.attn(q), residual)
        values = self.v_norm(v.unflatten(-1, (self.qkv_proj.num_kv_heads, -1))).flatten(-2)
        return self.o_proj(self.attn(q, k, values), residual)


def sharing_config(model: ModelSpec, layer_types: tuple[str, ...]) -> DecoderConfig:
    """Return the config of Gemma 3n and 4: norms store plain weights, queries are not scaled."""
    config = model.hf_config
    return gemma_config(
        model,
        norm=RMSNorm,
        layer_types=layer_types,
        window_tokens=config.get("sliding_window"),
        query_scale=1.0,
        final_logit_softcap=config.get("final_logit_softcapping"),
    )


def _unused_names(sources: tuple[int, ...]) -> tuple[str, ...]:
    """Return parts of names of keys and values that checkpoints have for layers without any."""
    shared = [layer for layer, source in enumerate(sources) if layer != source]
    return tuple(f"layers.{layer}.self_attn.{part}" for layer in shared for part in ("k_", "v_"))


class SharingLayer(SandwichLayer):
    """A layer of a SharingModel: attention and MLP, each between two norms."""

    @abstractmethod
    def forward(
        self, x: torch.Tensor, ropes: Mapping[str, Rope], own: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return the hidden states after the layer; `own` is its input for each token (None in
        families without). Shapes: x [.., T, E], own [T, P] -> [.., T, E]"""


class SharingModel(Gemma3Model):
    """A decoder whose last layers read other layers' keys and values: they only compute the tokens
    of a step that are sampled from. If layers have inputs, every stage has the token table, because
    the inputs are made from it."""

    def __init__(
        self,
        context: BuildContext,
        name: str,
        config: DecoderConfig,
        layer_class: type[DecoderLayer],
        sources: Sequence[int],
    ) -> None:
        super().__init__(context, name, config, layer_class)
        self.sources = tuple(sources)
        self._num_keeping = len(set(sources))
        has_inputs = bool(context.model.hf_config["hidden_size_per_layer_input"])
        self.layer_inputs = LayerInputs(context, config) if has_inputs else None
        if has_inputs and isinstance(self.embed_tokens, AbsentStage):
            model = context.model
            self.embed_tokens = VocabParallelEmbedding(
                context, model.vocab_size, model.hidden_size, factor=config.embedding_scale
            )
        find_sources(self)

    def spread_out(self, embedded: torch.Tensor) -> torch.Tensor:
        """Return the input of the first layer. Shapes: [T, E] -> [.., T, E]"""
        return embedded

    def handed_on(self, x: torch.Tensor) -> torch.Tensor:
        """Return states of the tokens as a stage sends them. Shapes: [.., T, E] -> [T, width]"""
        return x

    def taken_up(self, received: torch.Tensor) -> torch.Tensor:
        """Return the states that a stage received. Shapes: [T, width] -> [.., T, E]"""
        return received

    def joined(self, x: torch.Tensor) -> torch.Tensor:
        """Return the input of the last norm. Shapes: x [.., T, E] -> [T, E]"""
        return x

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Shapes: token_ids, positions [T] -> [T, E]"""
        inputs = None
        if self.stage.is_first or self.layer_inputs is not None:
            embedded = with_media(self.embed(token_ids, positions))
        if self.layer_inputs is not None:
            inputs = self.layer_inputs(token_ids, embedded)
        if self.stage.is_first:
            x = self.spread_out(embedded)
        else:
            x = self.taken_up(self.stage.received(token_ids))
        before, behind = range(self._num_keeping), range(self._num_keeping, len(self.layers))
        x = self._through(before, x, inputs, positions)
        drawn = drawn_tokens()
        if drawn is None:
            return self._ended(self._through(behind, x, inputs, positions))
        at = drawn.tokens
        if not len(at):
            return x.new_zeros(x.shape[-2:])
        own = None if inputs is None else inputs[at]
        x = self._through(behind, x[..., at, :], own, positions[at])
        return spread(self._ended(x), at, len(token_ids))

    def _through(
        self,
        numbers: range,
        x: torch.Tensor,
        inputs: torch.Tensor | None,
        positions: torch.Tensor,
    ) -> torch.Tensor:
        """Return the states after some layers. Shapes: x [.., T, E], inputs [T, L, P], positions
        [T] -> [.., T, E]"""
        ropes = {name: rotary(positions) for name, rotary in self.rotaries.items()}
        for number in numbers:
            if self.inner is not None and number in self.inner:
                keep_inner(self.inner, number, self.joined(x))
            own = None if inputs is None else inputs[:, number]
            x = self.layers[number](x, ropes, own)
        return x

    def _ended(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.joined(x)) if self.stage.is_last else self.handed_on(x)


class SharingForCausalLM(DecoderForCausalLM):
    """A SharingModel with a head. Of checkpoints that see and hear the text part is run; the names
    of the others begin with `senses`."""

    capabilities = frozenset({"tensor_parallel", "pipeline_parallel", "leaves_out_tokens"})
    model: SharingModel
    senses: ClassVar[tuple[str, ...]]

    def weight_map(self) -> WeightMap:
        """Return the names, without unread keys and values."""
        usual = super().weight_map()
        return replace(
            usual,
            prefixes=(("model.language_model.", "model."), *usual.prefixes),
            renames=NAMES,
            ignored=(*usual.ignored, *self.senses, *_unused_names(self.model.sources)),
        )

"""NomicBERT: BERT with rotated heads, gated inner layers and few biases; or, in its second version,
plain inner layers with biases, every other one a mixture of experts.

A mixture picks the experts of the largest scores of a softmax over all, whose weights stay as they
are, and adds one bias to their sum. Source: Nussbaum et al. 2024; Nussbaum and Duderstadt 2025.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from dovetail.errors import ConfigError
from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.model import BuildContext, WeightMap
from dovetail.interfaces.plugin import Info
from dovetail.layers import decoder
from dovetail.layers.attention.rotary import Rotary, rope_settings
from dovetail.layers.dtypes import dtype_of
from dovetail_plugins.layers.encoder import ONE_KIND, EncoderConfig, EncoderLayer, usual_encoder
from dovetail_plugins.layers.moe import MoE
from dovetail_plugins.layers.routing import RoutingRule
from dovetail_plugins.models.bert import BertModel

RENAMES = (
    ("embeddings.word_embeddings.", "embeddings.words."),
    ("embeddings.token_type_embeddings.", "embeddings.types."),
    ("embeddings.LayerNorm.", "embeddings.norm."),
    ("emb_ln.", "embeddings.norm."),
    ("encoder.layers.", "layers."),
    (".attn.Wqkv.", ".attention.qkv_proj."),
    (".attn.out_proj.", ".attention.o_proj."),
    (".self_attn.", ".attention."),
    (".mlp.router.layer.", ".mixture.gate."),
    (".mlp.experts.mlp.w1", ".mixture.experts.up_proj"),
    (".mlp.experts.mlp.w2", ".mixture.experts.down_proj"),
    (".mlp.experts.bias", ".mixture_bias"),
    (".mlp.fc1.", ".up_proj."),
    (".mlp.fc2.", ".down_proj."),
    (".mlp.", "."),
    (".norm1.", ".attention_norm."),
    (".norm2.", ".output_norm."),
    (".post_attention_layernorm.", ".attention_norm."),
    (".post_mlp_layernorm.", ".output_norm."),
)
"""The names used by its first code, and by transformers."""
GATED = "gate_up_proj"
FUSED = {
    **decoder.FUSED,
    "fc12": (GATED, "gate"),
    "fc11": (GATED, "up"),
}
ACTIVATIONS = {"swiglu": "silu", "geglu": "gelu", "silu": "silu"}
"""What config.json calls the activation of a gated layer -> its name."""
PLAIN = ("gelu",)
"""Activations of layers without a gate."""
UNUSUAL = {
    "prenorm": "norms before attention",
    "rotary_emb_interleaved": "interleaved rotation",
    "rotary_emb_scale_base": "xPos",
    "rotary_scaling_factor": "a rotation that depends on a text's length",
    "use_rms_norm": "RMS norms",
    "num_shared_experts": "shared experts",
    "expert_choice_router": "experts that choose their tokens",
    "moe_normalize_expert_weights": "weights of experts that are normalized",
    "parallel_block": "attention beside the inner layer",
}
"""Fields that must be off."""


def num_experts(facts: Any) -> int:
    """Return the experts of a mixture, 0 if no layer is one."""
    every = int(facts.get("moe_every_n_layers") or 0)
    return int(facts.get("num_experts") or 0) if every > 0 else 0


log = logging.getLogger(__name__)
NO_BIAS = (
    "the file lacks the bias after the experts of a layer, which llama.cpp's converters leave out: "
    "vectors are llama.cpp's, not those of the model that the file was made of"
)


class NomicLayer(EncoderLayer):
    """A layer whose MLP may be a mixture of experts."""

    def add_mlp(self, context: BuildContext, name: str, config: EncoderConfig, layer: int) -> None:
        """Create the MLP, or the mixture of every n-th layer. Mutates: self"""
        facts = context.model.hf_config
        every, count = int(facts.get("moe_every_n_layers") or 0), num_experts(facts)
        self.mixture: MoE | None = None
        if not count or layer % every != 1 % every:
            super().add_mlp(context, name, config, layer)
            return
        self.mixture = MoE(
            context,
            f"{name}.mixture",
            num_experts=count,
            rule=RoutingRule(num_picked=int(facts.get("moe_top_k") or 1)),
            inner=config.inner_size,
            act=config.hidden_act,
            is_gated=False,
        )
        self.mixture_bias: nn.Parameter | None = None
        if not facts.get("has_expert_bias", True):
            log.warning(NO_BIAS)
        else:
            dtype, size = dtype_of(context.model.dtype), context.model.hidden_size
            empty = torch.empty(size, dtype=dtype, device=context.device)
            self.mixture_bias = nn.Parameter(empty, requires_grad=False)

    def mlp(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """Return residual plus the MLP's output. Shapes: x, residual [T, E] -> [T, E]"""
        if self.mixture is None:
            return super().mlp(x, residual)
        out = self.mixture(x, residual)
        return out if self.mixture_bias is None else out + self.mixture_bias


class JoinedExperts:
    """Divides the joined matrices of `count` experts: w1 and w2 are [count * F, E] each."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __call__(
        self, tensors: Iterable[tuple[str, torch.Tensor]]
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield w1 as [count, F, E], w2 as [count, E, F], and all other tensors as they are."""
        for name, tensor in tensors:
            if name.endswith((".experts.mlp.w1", ".experts.mlp.w2")):
                tensor = tensor.unflatten(0, (self._count, -1))
            yield name, tensor.mT.contiguous() if name.endswith(".experts.mlp.w2") else tensor


class NomicBertModel(BertModel):
    """NomicBERT, for vectors of prompts, their classes, or classes of their tokens."""

    info = Info(summary="NomicBERT", source="https://arxiv.org/abs/2402.01613")
    prefixes = ("bert.", "nomic_bert.")
    renames = RENAMES
    fused = FUSED
    layer_class = NomicLayer

    def __init__(self, options: Any, context: BuildContext) -> None:
        super().__init__(options, context)
        facts = context.model.hf_config
        self._num_experts = num_experts(facts)
        self._is_gated = str(facts["hidden_act"]) in ACTIVATIONS

    @classmethod
    def encoder_config(cls, model: ModelSpec) -> EncoderConfig:
        """Return how it differs from BERT. Raises: ConfigError for unsupported settings"""
        facts = model.hf_config
        act = str(facts["hidden_act"])
        found = [words for field, words in UNUSUAL.items() if facts.get(field)]
        found += [] if act in ACTIVATIONS or act in PLAIN else [f"the activation {act}"]
        if num_experts(facts) and act not in PLAIN:
            found.append("gated experts")
        if facts.get("rotary_emb_fraction", 1.0) != 1.0:
            found.append("a rotation of part of the heads")
        if found:
            raise ConfigError(f"{', '.join(found)}: not supported.", where="config.json")
        inner_bias = bool(facts.get("mlp_fc1_bias"))
        return usual_encoder(
            model,
            num_positions=0,
            hidden_act=ACTIVATIONS.get(act, act),
            is_gated=act in ACTIVATIONS,
            is_rotary=True,
            has_qkv_bias=bool(facts.get("qkv_proj_bias")),
            has_out_bias=bool(facts.get("qkv_proj_bias")),
            has_up_bias=inner_bias,
            has_down_bias=bool(facts.get("mlp_fc2_bias")),
        )

    def build_rotaries(self, context: BuildContext) -> nn.ModuleDict:
        """Return the rotation of all layers."""
        settings = rope_settings(context, theta=1000.0)
        return nn.ModuleDict({ONE_KIND: Rotary(settings, context.device)})

    def weight_map(self) -> WeightMap:
        """Return the names; with experts, their joined matrices are divided."""
        names = super().weight_map()
        if not self._is_gated:
            fused = {leaf: to for leaf, to in self.fused.items() if to[0] != GATED}
            names = replace(names, fused=fused)
        joined = JoinedExperts(self._num_experts)
        return replace(names, conversion=joined) if self._num_experts else names

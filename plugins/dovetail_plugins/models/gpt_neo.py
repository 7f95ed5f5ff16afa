"""GPT-Neo: GPT-2 with windows in some layers, scores that are not scaled, and matrices stored apart
as [out, in].

Source: Black et al., GPT-Neo, 2021.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from dovetail.interfaces.attention import AttentionSpec
from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.model import WeightMap
from dovetail.interfaces.plugin import Info
from dovetail_plugins.model_types.gpt_neo import LOCAL, layer_types
from dovetail_plugins.models.gpt2 import GPT2Attention, GPT2Layer, GPT2LMHeadModel


class GPTNeoAttention(GPT2Attention):
    """Attention of a layer, local or global."""

    has_qkv_bias = False

    def attention_spec(self, model: ModelSpec, layer: int) -> AttentionSpec:
        """Return the spec of this layer's attention."""
        config = model.hf_config
        is_local = layer_types(config)[layer] == LOCAL
        return replace(
            super().attention_spec(model, layer),
            scale=1.0,
            window_tokens=int(config["window_size"]) if is_local else None,
        )


class GPTNeoLayer(GPT2Layer):
    """One layer."""

    attention_class = GPTNeoAttention


class GPTNeoForCausalLM(GPT2LMHeadModel):
    """GPT-Neo with its tied head."""

    info = Info(summary="GPT-Neo", source="https://github.com/EleutherAI/gpt-neo")
    layer_class: ClassVar[type[GPT2Layer]] = GPTNeoLayer

    def weight_map(self) -> WeightMap:
        """Return the names."""
        return replace(
            super().weight_map(),
            renames=((".attn.attention.", ".attn."), (".attn.out_proj.", ".attn.c_proj.")),
            fused={f"{part}_proj": ("c_attn", part) for part in "qkv"},
            transposed=(),
            ignored=(".attention.bias", ".attention.masked_bias"),
        )

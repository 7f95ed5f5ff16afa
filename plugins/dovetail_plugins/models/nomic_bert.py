"""NomicBERT: BERT with rotated heads, gated inner layers and few biases.

Source: Nussbaum et al. 2024.
"""

from __future__ import annotations

from torch import nn

from dovetail.errors import ConfigError
from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.model import BuildContext
from dovetail.interfaces.plugin import Info
from dovetail.layers import decoder
from dovetail.layers.attention.rotary import Rotary, rope_settings
from dovetail_plugins.layers.encoder import ONE_KIND, EncoderConfig, usual_encoder
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
    (".mlp.fc2.", ".down_proj."),
    (".mlp.", "."),
    (".norm1.", ".attention_norm."),
    (".norm2.", ".output_norm."),
    (".post_attention_layernorm.", ".attention_norm."),
    (".post_mlp_layernorm.", ".output_norm."),
)
"""The names used by its first code, and by transformers."""
FUSED = {
    **decoder.FUSED,
    "fc12": ("gate_up_proj", "gate"),
    "fc11": ("gate_up_proj", "up"),
}
ACTIVATIONS = {"swiglu": "silu", "geglu": "gelu", "silu": "silu"}
"""What config.json calls the activation of a gated layer -> its name."""
UNUSUAL = {
    "prenorm": "norms before attention",
    "rotary_emb_interleaved": "interleaved rotation",
    "rotary_emb_scale_base": "xPos",
    "rotary_scaling_factor": "a rotation that depends on a text's length",
    "use_rms_norm": "RMS norms",
    "num_experts": "mixtures of experts",
    "parallel_block": "attention beside the inner layer",
}
"""Fields that must be off."""


class NomicBertModel(BertModel):
    """NomicBERT, for vectors of prompts, their classes, or classes of their tokens."""

    info = Info(summary="NomicBERT", source="https://arxiv.org/abs/2402.01613")
    prefixes = ("bert.", "nomic_bert.")
    renames = RENAMES
    fused = FUSED

    @classmethod
    def encoder_config(cls, model: ModelSpec) -> EncoderConfig:
        """Return how it differs from BERT. Raises: ConfigError for unsupported settings"""
        facts = model.hf_config
        act = str(facts["hidden_act"])
        found = [words for field, words in UNUSUAL.items() if facts.get(field)]
        found += [] if act in ACTIVATIONS else [f"the activation {act}"]
        if facts.get("rotary_emb_fraction", 1.0) != 1.0:
            found.append("a rotation of part of the heads")
        if found:
            raise ConfigError(f"{', '.join(found)}: not supported.", where="config.json")
        inner_bias = bool(facts.get("mlp_fc1_bias"))
        return usual_encoder(
            model,
            num_positions=0,
            hidden_act=ACTIVATIONS[act],
            is_gated=True,
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

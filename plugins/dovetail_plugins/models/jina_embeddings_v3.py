"""Jina's embeddings v3: XLM-RoBERTa with rotated heads in place of learned positions.

The adapters of its tasks are not part of it. Source: Sturua et al. 2024.
"""

from __future__ import annotations

from torch import nn

from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.model import BuildContext
from dovetail.interfaces.plugin import Info
from dovetail.layers.attention.rotary import Rotary, rope_settings
from dovetail_plugins.layers.encoder import ONE_KIND, EncoderConfig, usual_encoder
from dovetail_plugins.models import bert
from dovetail_plugins.models.bert import OWN_HEAD, BertModel

RENAMES = (
    *bert.RENAMES,
    ("emb_ln.", "embeddings.norm."),
    ("encoder.layers.", "layers."),
    (".mixer.Wqkv.", ".attention.qkv_proj."),
    (".mixer.out_proj.", ".attention.o_proj."),
    (".self_attn.", ".attention."),
    (".mlp.fc1.", ".up_proj."),
    (".mlp.fc2.", ".down_proj."),
    (".norm1.", ".attention_norm."),
    (".norm2.", ".output_norm."),
    (".post_attention_layernorm.", ".attention_norm."),
    (".post_mlp_layernorm.", ".output_norm."),
)
"""The names used by its first code, and by transformers."""


class JinaEmbeddingsV3Model(BertModel):
    """Jina's embeddings v3, for vectors of prompts, their classes, or classes of their tokens."""

    info = Info(summary="Jina's embeddings v3", source="https://arxiv.org/abs/2409.10173")
    prefixes = ("roberta.",)
    renames = RENAMES
    prompt_head = OWN_HEAD

    @classmethod
    def encoder_config(cls, model: ModelSpec) -> EncoderConfig:
        """Return how it differs from BERT: no table of positions."""
        return usual_encoder(model, num_positions=0, is_rotary=True)

    def build_rotaries(self, context: BuildContext) -> nn.ModuleDict:
        """Return the rotation of all layers."""
        settings = rope_settings(context, theta=20000.0)
        return nn.ModuleDict({ONE_KIND: Rotary(settings, context.device)})

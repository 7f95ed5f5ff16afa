"""DistilBERT: BERT with half the layers and no types; a ReLU before the prompt classifier.

Source: Sanh et al. 2019.
"""

from __future__ import annotations

from torch import nn

from dovetail.interfaces.data.spec import CLASSES, ModelSpec
from dovetail.interfaces.model import BuildContext
from dovetail.interfaces.plugin import Info
from dovetail_plugins.layers.class_head import DenseClasses
from dovetail_plugins.layers.encoder import EncoderConfig, usual_encoder
from dovetail_plugins.models.bert import OWN_FUSED, BertModel

RENAMES = (
    ("embeddings.word_embeddings.", "embeddings.words."),
    ("embeddings.position_embeddings.", "embeddings.positions."),
    ("embeddings.LayerNorm.", "embeddings.norm."),
    ("transformer.layer.", "layers."),
    (".attention.out_lin.", ".attention.o_proj."),
    (".sa_layer_norm.", ".attention_norm."),
    (".ffn.lin1.", ".up_proj."),
    (".ffn.lin2.", ".down_proj."),
    (".output_layer_norm.", ".output_norm."),
)
FUSED = {
    **OWN_FUSED,
    "q_lin": ("qkv_proj", "q"),
    "k_lin": ("qkv_proj", "k"),
    "v_lin": ("qkv_proj", "v"),
}


class DistilBertModel(BertModel):
    """DistilBERT, for vectors of prompts, their classes, or classes of their tokens."""

    info = Info(summary="DistilBERT", source="https://arxiv.org/abs/1910.01108")
    prefixes = ("distilbert.",)
    renames = RENAMES
    fused = FUSED
    prompt_head = (("pre_classifier.", "head.dense."), ("classifier.", "head.out."))

    word_head = (
        ("vocab_transform.", "head.dense."),
        ("vocab_layer_norm.", "head.norm."),
        ("vocab_projector.bias", "head.bias"),
    )

    @classmethod
    def encoder_config(cls, model: ModelSpec) -> EncoderConfig:
        """Return how it differs: it does not distinguish the texts of a prompt."""
        return usual_encoder(model, num_types=0)

    def build_head(self, context: BuildContext) -> nn.Module:
        """Return the classifier: of a prompt by two matrices, of tokens by one."""
        is_whole = not context.model.hf_config.get("has_no_pooler")
        if context.model.head == CLASSES and is_whole:
            return DenseClasses(context, act="relu")
        return super().build_head(context)

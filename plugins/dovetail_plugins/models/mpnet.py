"""MPNet: BERT with biases by relative position in attention, and positions as RoBERTa's.

Source: Song et al. 2020.
"""

from __future__ import annotations

from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.model import BuildContext
from dovetail.interfaces.plugin import Info
from dovetail_plugins.layers.attention.position_bias import BucketBias, PositionBias
from dovetail_plugins.layers.encoder import EncoderConfig, usual_encoder
from dovetail_plugins.models import bert

RENAMES = (
    ("encoder.relative_attention_bias.", "position_bias."),
    (".attention.attn.o.", ".attention.o_proj."),
    (".attention.attn.", ".attention."),
    (".attention.LayerNorm.", ".attention_norm."),
    *bert.RENAMES,
)
FUSED = {"q": ("qkv_proj", "q"), "k": ("qkv_proj", "k"), "v": ("qkv_proj", "v")}
MAX_DISTANCE = 128
"""The distance beyond which all keys share a bucket."""


class MPNetModel(bert.BertModel):
    """MPNet, for vectors of prompts, their classes, or classes of their tokens."""

    info = Info(summary="MPNet", source="https://arxiv.org/abs/2004.09297")
    prefixes = ("mpnet.",)
    renames = RENAMES
    fused = FUSED
    prompt_head = bert.OWN_HEAD

    @classmethod
    def encoder_config(cls, model: ModelSpec) -> EncoderConfig:
        """Return how it differs from BERT: it does not distinguish the texts of a prompt."""
        return usual_encoder(model, num_types=0)

    def build_position_bias(self, context: BuildContext) -> PositionBias:
        """Return the biases that all layers share."""
        count = int(context.model.hf_config["relative_attention_num_buckets"])
        return BucketBias(context, num_buckets=count, max_distance=MAX_DISTANCE)

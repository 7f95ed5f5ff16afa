"""Jina's BERT (v2): no table of positions but ALiBi among all tokens, and gated inner layers.

Source: Guenther et al. 2023.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dovetail.errors import ConfigError
from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.model import WeightMap
from dovetail.interfaces.plugin import Info
from dovetail.layers.attention.alibi import alibi_slopes
from dovetail_plugins.layers.encoder import EncoderConfig, usual_encoder
from dovetail_plugins.models.bert import RENAMES, BertModel

GATED = {"geglu": "gelu", "reglu": "relu"}
"""What config.json calls a gated inner layer -> its activation."""


class JinaBertModel(BertModel):
    """Jina's BERT, for vectors of prompts, their classes, or classes of their tokens."""

    info = Info(summary="Jina BERT v2 (ALiBi)", source="https://arxiv.org/abs/2310.19923")
    renames = (
        (".mlp.gated_layers.", ".gate_up_proj."),
        (".mlp.wo.", ".down_proj."),
        (".mlp.layernorm.", ".output_norm."),
        *RENAMES,
    )

    @classmethod
    def encoder_config(cls, model: ModelSpec) -> EncoderConfig:
        """Return how it differs from BERT. Raises: ConfigError for another position encoding"""
        facts = model.hf_config
        if facts.get("position_embedding_type") != "alibi":
            raise ConfigError(
                f'positions by "{facts.get("position_embedding_type")}" are not supported here.',
                where="config.json: position_embedding_type",
                fix="Jina's BERT has alibi.",
            )
        slopes = alibi_slopes(model.num_heads)
        positions: dict[str, Any] = {"num_positions": 0, "alibi_slopes": slopes}
        act = GATED.get(str(facts.get("feed_forward_type")))
        if act is None:
            return usual_encoder(model, **positions)
        return usual_encoder(model, hidden_act=act, is_gated=True, has_up_bias=False, **positions)

    def weight_map(self) -> WeightMap:
        """Return the names; a gated layer's halves may be two matrices."""
        names = super().weight_map()
        is_gated = any(layer.is_gated for layer in self.layers)
        halves = {f"{half}_proj": ("gate_up_proj", half) for half in ("gate", "up")}
        return replace(names, fused={**names.fused, **halves}) if is_gated else names

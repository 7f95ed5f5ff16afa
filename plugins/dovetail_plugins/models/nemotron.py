"""Nemotron-4 and Minitron: layer norms whose weight is stored as its distance from one, half of
each head rotated, and an MLP of squared ReLU without a gate.

Source: Parmar et al., Nemotron-4 15B, 2024.
"""

from __future__ import annotations

from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.plugin import Info
from dovetail.layers.decoder import DecoderConfig, DecoderForCausalLM, usual_config
from dovetail.layers.norm import LayerNorm1p


class NemotronForCausalLM(DecoderForCausalLM):
    """Nemotron with a head."""

    info = Info(summary="Nemotron-4 and Minitron", source="https://arxiv.org/abs/2402.16819")

    @classmethod
    def decoder_config(cls, model: ModelSpec) -> DecoderConfig:
        """Return the config."""
        eps = float(model.hf_config["norm_eps"])
        return usual_config(model, norm=LayerNorm1p, norm_eps=eps, is_gated=False, rotary_share=0.5)

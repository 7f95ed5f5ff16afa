"""Llama 1 to 3 and the many checkpoints of its shape: the plain decoder.

Source: Touvron et al. 2023.
"""

from __future__ import annotations

from dovetail.interfaces.plugin import Info
from dovetail.layers.decoder import DecoderForCausalLM


class LlamaForCausalLM(DecoderForCausalLM):
    """The plain decoder with a head."""

    info = Info(summary="Llama 1 to 3", source="https://arxiv.org/abs/2302.13971")

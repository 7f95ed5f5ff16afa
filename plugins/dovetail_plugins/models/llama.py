"""Llama 1 to 3 and the many checkpoints of its shape: the plain decoder.

Source: Touvron et al. 2023.
"""

from __future__ import annotations

from typing import Any

import torch

from dovetail.interfaces.model import BuildContext
from dovetail.interfaces.plugin import Info
from dovetail.layers.decoder import DecoderForCausalLM


class LlamaForCausalLM(DecoderForCausalLM):
    """The plain decoder with a head."""

    info = Info(summary="Llama 1 to 3", source="https://arxiv.org/abs/2302.13971")

    def __init__(self, options: Any, context: BuildContext) -> None:
        super().__init__(options, context)
        model = context.model
        # Only for bidirectional models: elsewhere the field is about sampling.
        self.temperature = 1.0 if model.is_causal else float(model.hf_config.get("temperature", 1))

    def classes(self, pooled: torch.Tensor) -> torch.Tensor:
        """Return the numbers of the classes. Shapes: pooled [S, E] -> [S, C]"""
        return super().classes(pooled) / self.temperature

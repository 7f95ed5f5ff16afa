"""Attention with an output gate: a head's output is multiplied by a sigmoid of its input.

For the T tokens of a step (H query heads, D head size):

    q, gate, k, v = qkv_proj(x)                          # [T, H*D] each of the first two
    h = o_proj(attention(q, k, v) * sigmoid(gate))

Source: Qiu et al., Gated Attention for Large Language Models, 2025 (arXiv 2505.06708).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from dovetail.interfaces.model import BuildContext
from dovetail.layers.attention.rotary import Rope
from dovetail.layers.decoder import DecoderAttention, DecoderConfig
from dovetail.layers.linear import QKVParallelLinear
from dovetail.layers.linear.joints import Joint
from dovetail.layers.linear.placement import Part
from dovetail_plugins.layers.attention.output_gate import OutputGate

GATE = "gate"
WITH_GATE = "q_and_gate"
"""Names a checkpoint tensor that has, for each query head, its query and then its gate."""


class GatedQKVLinear(QKVParallelLinear):
    """Queries, keys, values and the gates of the query heads in one matrix."""

    def parts_behind(self, q: Part) -> tuple[Part, ...]:
        """Return the gates."""
        return (replace(q, name=GATE),)

    def joints_behind(self, head_size: int) -> Mapping[str, Joint]:
        """Return the joint of queries and gates."""
        return {WITH_GATE: dict.fromkeys(("q", GATE), head_size)}


class GatedAttention(DecoderAttention):
    """Rotary attention whose heads' outputs are gated."""

    qkv_class = GatedQKVLinear

    def __init__(self, context: BuildContext, name: str, config: DecoderConfig, layer: int) -> None:
        super().__init__(context, name, config, layer)
        self._open = OutputGate(context)

    def forward(
        self, x: torch.Tensor, rope: Rope | None, residual: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Shapes: x, residual [T, E] -> [T, E]"""
        both = self.qkv_proj(x)
        *others, width = self.qkv_proj.spec.out_sizes
        qkv, gate = both.split((sum(others), width), dim=-1)
        q, k, v = self.rotate(qkv, rope)
        return self.o_proj(self._open(self.attn(q, k, v), gate), residual)

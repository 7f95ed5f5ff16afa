"""A.X K2: DeepSeek V3.2 with gates for heads and norms, computed from their inputs.

For the T tokens of a step, with c their queries' latents before the norm (H heads):

    y = norm(x);  y = y sigmoid(fc2 silu(fc1 y))         # before attention, and before experts
    q, gate = q_gate_proj([norm(c), c])                  # [T, H (N + R)], [T, H V] in turns by head
    h = o_proj(attention(q, ...) sigmoid(gate))

Source: SK Telecom, A.X K2, 2026, as transformers has it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import nn

from dovetail.errors import ConfigError
from dovetail.interfaces.model import BuildContext, WeightMap
from dovetail.interfaces.plugin import Info
from dovetail.layers.attention.latent import LatentAttention
from dovetail.layers.attention.rotary import Rope
from dovetail.layers.decoder import DecoderConfig
from dovetail.layers.linear import ColumnParallelLinear, ReplicatedActivatedLinear, ReplicatedLinear
from dovetail.layers.repeated import of_tensors
from dovetail_plugins.layers.attention.indexed import IndexedAttention
from dovetail_plugins.layers.attention.output_gate import OutputGate
from dovetail_plugins.models.deepseek import DeepseekV32ForCausalLM, IndexedLayer, is_sparse

RENAMES = (
    (".W_down.", ".mlp.fc1."),
    (".W_up.", ".mlp.fc2."),
    (".self_attn.q_b_proj.", ".self_attn.q_gate_proj."),
)


class NormGate(nn.Module):
    """The gate of a norm's channels (`name` is the norm's): two small matrices, whole on every
    rank."""

    def __init__(self, context: BuildContext, name: str) -> None:
        super().__init__()
        hidden = context.model.hidden_size
        rank = int(context.model.hf_config["gated_norm_rank"])
        self.fc1 = ReplicatedActivatedLinear(context, f"{name}.W_down", hidden, rank, act="silu")
        self.fc2 = ReplicatedLinear(context, f"{name}.W_up", rank, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Shapes: x [T, E] -> [T, E]"""
        return self.fc2(self.fc1(x))


class OutputGatedNorm(nn.Module):
    """A norm whose output channels are gated by a sigmoid of the output."""

    def __init__(self, context: BuildContext, name: str, config: DecoderConfig) -> None:
        super().__init__()
        self.norm = config.build_norm(context)
        self.mlp = NormGate(context, name)
        self._open = OutputGate(context)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Shapes: x [T, E] -> [T, E]"""
        normed = self.norm(x)
        return self._open(normed, self.mlp(normed))


class GatedQueries(LatentAttention):
    """Latent attention with gates; one matrix makes them and the queries, from the normed and the
    raw latents. Its rows stay interleaved by head, as quantized checkpoints store them."""

    def build_queries(self, context: BuildContext, name: str) -> None:
        """Make the matrices of queries and gates. Mutates: self. Raises: ConfigError"""
        config, rank = self.config, self.config.query_rank
        if rank is None:
            raise ConfigError(
                "gates are made of the queries' latents, and the model has none.",
                where="config.json: q_lora_rank",
                fix="set it to the published number.",
            )
        self.build_query_latents(context, name, rank)
        width = context.model.num_heads * (self.head_size + config.value_size)
        self.q_gate_proj = ColumnParallelLinear(context, f"{name}.q_b_proj", 2 * rank, width)
        self._open = OutputGate(context)
        self._apart = partial(_apart, (self.head_size, config.value_size))

    def forward(
        self, x: torch.Tensor, rope: Rope, residual: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Shapes: x, residual [T, E] -> [T, E]"""
        plain = self.q_a_proj(x)
        normed = self.q_a_layernorm(plain)
        (both,) = of_tensors(_side_by_side, normed, plain)
        q, gate = of_tensors(self._apart, self.q_gate_proj(both))
        return self.o_proj(self._open(self.attend(x, rope, q, normed), gate), residual)


def _side_by_side(normed: torch.Tensor, plain: torch.Tensor) -> tuple[torch.Tensor]:
    return (torch.cat([normed, plain], dim=-1),)


def _apart(sizes: tuple[int, int], both: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return queries and gates of all heads. Shapes: [T, H (D + V)] -> [T, H D], [T, H V]"""
    heads = both.unflatten(-1, (-1, sum(sizes)))
    return tuple(part.flatten(-2) for part in heads.split(sizes, dim=-1))


class GatedIndexedAttention(GatedQueries, IndexedAttention):
    """The same with an indexer that picks the tokens to attend to."""


class AXK2Layer(IndexedLayer):
    """A layer with a gate after the norm before attention, and after the one before experts."""

    attention_class = GatedQueries
    indexed_class = GatedIndexedAttention

    def __init__(self, context: BuildContext, name: str, config: DecoderConfig, layer: int) -> None:
        super().__init__(context, name, config, layer)
        self.input_layernorm = OutputGatedNorm(context, f"{name}.input_layernorm", config)
        if is_sparse(context.model.hf_config, layer):
            norm = OutputGatedNorm(context, f"{name}.post_attention_layernorm", config)
            self.post_attention_layernorm = norm


class AXK2ForCausalLM(DeepseekV32ForCausalLM):
    """A.X K2 with a head."""

    info = Info(
        summary="A.X K2 (sparse latent attention with gates, mixture of experts)",
        source="https://huggingface.co/skt/A.X-K2",
    )
    layer_class = AXK2Layer

    def weight_map(self) -> WeightMap:
        """Return the names: released checkpoints do not use transformers'."""
        usual = super().weight_map()
        return replace(usual, renames=(*usual.renames, *RENAMES))

"""Granite 4: Granite's multipliers over layers of a Mamba 2 mixer or of attention, and experts.

Every layer has a shared MLP; most models also have experts. Attention is rotated only if
config.json says so.
Source: IBM, Granite 4.0 language models, 2025.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.model import BuildContext, WeightMap
from dovetail.interfaces.plugin import Info
from dovetail.layers.decoder import DecoderConfig, GatedMLP
from dovetail_plugins.layers.mixers.hybrid import HybridModel
from dovetail_plugins.layers.moe import MoE
from dovetail_plugins.model_types.granite_moe_hybrid import layer_types
from dovetail_plugins.models._hybrid import MambaLayer
from dovetail_plugins.models._moe import num_experts, softmax_rule
from dovetail_plugins.models.granite import GraniteForCausalLM

SHARED, EXPERTS = "shared_mlp", "block_sparse_moe"
"""The parts of a feed-forward block in the checkpoint, if they are direct children of a layer."""


class GraniteFeedForward(nn.Module):
    """A shared MLP, and experts if the model has some; the picked experts' weights sum to one."""

    def __init__(self, context: BuildContext, layer: str, act: str) -> None:
        super().__init__()
        config = context.model.hf_config
        inner, count = int(config["shared_intermediate_size"]), num_experts(config)
        self.shared_mlp = GatedMLP(context, f"{layer}.{SHARED}", inner=inner, act=act)
        self.block_sparse_moe: MoE | None = None
        if count > 0:
            self.block_sparse_moe = MoE(
                context,
                f"{layer}.{EXPERTS}",
                num_experts=count,
                rule=softmax_rule(config, renormalizes=True),
                inner=int(config["intermediate_size"]),
                act=act,
                gate="router.layer",
            )

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """Shapes: x, residual [T, E] -> [T, E]"""
        shared: torch.Tensor = self.shared_mlp(x, residual)
        if self.block_sparse_moe is None:
            return shared
        out: torch.Tensor = self.block_sparse_moe(x, shared)
        return out


class GraniteHybridLayer(MambaLayer):
    """One layer of Granite 4."""

    mlp_name = SHARED

    def build_mlp(
        self, context: BuildContext, name: str, config: DecoderConfig, layer: int
    ) -> GraniteFeedForward:
        """Return the layer's shared MLP and its experts."""
        return GraniteFeedForward(context, name.removesuffix(f".{SHARED}"), config.hidden_act)


class GraniteHybridModel(HybridModel):
    """The layers; attention layers are rotated if config.json says so."""

    def build_rotaries(self, context: BuildContext, layer_types: set[str]) -> nn.ModuleDict:
        """Return the table of the layers that attend, or none."""
        is_rotated = context.model.hf_config.get("position_embedding_type") == "rope"
        return super().build_rotaries(context, layer_types if is_rotated else set())


class GraniteMoeHybridForCausalLM(GraniteForCausalLM):
    """Granite 4 with a head."""

    info = Info(
        summary="Granite 4: Mamba 2, attention, experts",
        source="https://huggingface.co/ibm-granite/granite-4.0-h-small",
    )
    model_class = GraniteHybridModel
    layer_class = GraniteHybridLayer

    @classmethod
    def decoder_config(cls, model: ModelSpec) -> DecoderConfig:
        """Return Granite's config with the layers that attend."""
        return replace(super().decoder_config(model), layer_types=layer_types(model.hf_config))

    def weight_map(self) -> WeightMap:
        """Return the names: gate and up are stored as one, the experts of a layer together."""
        renames = (
            (f".{SHARED}.input_linear.", f".{SHARED}.gate_up_proj."),
            (f".{SHARED}.output_linear.", f".{SHARED}.down_proj."),
            (f".{EXPERTS}.input_linear.weight", f".{EXPERTS}.experts.gate_up_proj"),
            (f".{EXPERTS}.output_linear.weight", f".{EXPERTS}.experts.down_proj"),
            (f".{EXPERTS}.router.layer.", f".{EXPERTS}.gate."),
            *((f".{part}.", f".mlp.{part}.") for part in (SHARED, EXPERTS)),
        )
        return replace(super().weight_map(), renames=renames)

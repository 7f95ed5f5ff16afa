"""Nemotron-H: each layer is a norm and one block: a Mamba 2 mixer, attention, an MLP or experts.

Nothing is rotated; the mixers encode the order. The MLPs are down(relu(up(x)) squared), and so are
experts, which may read a narrower latent of their input; a shared expert computes every token.
Sources: NVIDIA, Nemotron-H, 2025 (arXiv 2504.03624); Nemotron 3, 2025 (experts).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.model import BuildContext, WeightMap
from dovetail.interfaces.plugin import Info
from dovetail.layers.attention.rotary import Rope
from dovetail.layers.decoder import (
    DecoderAttention,
    DecoderConfig,
    DecoderForCausalLM,
    DecoderLayer,
    PlainMLP,
    usual_config,
)
from dovetail.layers.linear import ReplicatedLinear
from dovetail.layers.repeated import of_tensors
from dovetail.parallel.collectives import all_reduce
from dovetail_plugins.layers.mixers.hybrid import UnrotatedModel
from dovetail_plugins.layers.mixers.mamba2 import Mamba2Mixer
from dovetail_plugins.layers.moe import MoE
from dovetail_plugins.model_types.nemotron_h import (
    ATTENTION,
    EXPERTS,
    MIXER,
    layer_types,
    mixer_sizes,
)
from dovetail_plugins.models._moe import CORRECTION_BIAS, num_experts, sigmoid_rule


class NemotronHMoE(MoE):
    """Picked experts and a shared one. With a latent, experts read fc1(x), and fc2 takes their sum
    back."""

    def __init__(self, context: BuildContext, name: str, config: DecoderConfig) -> None:
        settings, hidden = context.model.hf_config, context.model.hidden_size
        latent = settings.get("moe_latent_size")
        act, bias = config.hidden_act, config.has_mlp_bias
        super().__init__(
            context,
            name,
            num_experts=num_experts(settings),
            rule=sigmoid_rule(settings),
            inner=int(settings["moe_intermediate_size"]),
            act=act,
            routes_in_float32=True,
            has_correction_bias=True,
            size=latent,
            is_gated=False,
        )
        inner = int(settings["moe_shared_expert_intermediate_size"])
        self.shared_experts = PlainMLP(
            context, f"{name}.shared_experts", inner=inner, act=act, bias=bias
        )
        self.has_latent = latent is not None
        if latent is not None:
            there, back = (f"{name}.{fc}_latent_proj" for fc in ("fc1", "fc2"))
            self.fc1_latent_proj = ReplicatedLinear(context, there, hidden, latent, bias=bias)
            self.fc2_latent_proj = ReplicatedLinear(context, back, latent, hidden, bias=bias)

    def forward(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """Shapes: x, residual [T, E] -> [T, E]"""
        rest = self.shared_experts(x, residual)
        if not self.has_latent:
            return super().forward(x, rest)
        output = self.experts(self.fc1_latent_proj(x), *self.picked(x))
        out = self.fc2_latent_proj(all_reduce(output, self.group))
        return of_tensors(lambda a, b: (a + b,), rest, out)[0]


class NemotronHLayer(DecoderLayer):
    """One layer: a mixer, attention, an MLP or experts, added to its input."""

    def __init__(self, context: BuildContext, name: str, config: DecoderConfig, layer: int) -> None:
        nn.Module.__init__(self)
        self.kind, name = config.layer_types[layer], f"{name}.mixer"
        settings = context.model.hf_config
        self.norm = config.build_norm(context)
        if self.kind == MIXER:
            self.mixer: nn.Module = Mamba2Mixer(context, name, mixer_sizes(settings))
        elif self.kind == ATTENTION:
            self.mixer = DecoderAttention(context, name, config, layer)
        elif self.kind == EXPERTS:
            self.mixer = NemotronHMoE(context, name, config)
        else:
            inner, act = int(settings["intermediate_size"]), config.hidden_act
            self.mixer = PlainMLP(context, name, inner=inner, act=act, bias=config.has_mlp_bias)

    def forward(self, x: torch.Tensor, ropes: Mapping[str, Rope]) -> torch.Tensor:
        """Shapes: x [T, E] -> [T, E]"""
        inner = self.norm(x)
        if self.kind == ATTENTION:
            out: torch.Tensor = self.mixer(inner, None, x)
        else:
            out = self.mixer(inner, x)
        return out


class NemotronHForCausalLM(DecoderForCausalLM):
    """Nemotron-H with its head."""

    info = Info(summary="Nemotron-H", source="https://arxiv.org/abs/2504.03624")
    model_class = UnrotatedModel
    layer_class = NemotronHLayer

    @classmethod
    def decoder_config(cls, model: ModelSpec) -> DecoderConfig:
        """Return the config with each layer's kind. Raises: ConfigError for one not supported."""
        config, kinds = model.hf_config, layer_types(model.hf_config)
        return usual_config(
            model,
            layer_types=kinds,
            norm_eps=float(config["layer_norm_epsilon"]),
            hidden_act=config["mlp_hidden_act"],
            is_gated=False,
            has_qkv_bias=False,
            has_out_bias=False,
        )

    def weight_map(self) -> WeightMap:
        """Return the names: Nemotron-H's own for the trunk, the embedding and the last norm."""
        usual = super().weight_map()
        own = (("embeddings.", "embed_tokens."), ("norm_f.", "norm."), ("", ""))
        return WeightMap(
            prefixes=tuple(
                (f"{trunk}.{old}", f"model.{new}")
                for trunk in ("backbone", "model")
                for old, new in own
            ),
            renames=(CORRECTION_BIAS,),
            fused=usual.fused,
            ignored=("mtp.",),
            tied=usual.tied,
        )

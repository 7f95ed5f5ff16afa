"""Mamba 1 and 2 and Falcon Mamba: layers of a norm and one mixer, no attention.

Source: Gu and Dao 2023; Dao and Gu 2024; Zuo et al., Falcon Mamba, 2024 (arXiv 2410.05355).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.model import BuildContext, WeightMap
from dovetail.interfaces.plugin import Info
from dovetail.layers.attention.rotary import Rope
from dovetail.layers.decoder import DecoderConfig, DecoderForCausalLM, DecoderLayer, usual_config
from dovetail.layers.norm import BareRMSNorm
from dovetail_plugins.layers.mixers.hybrid import UnrotatedModel
from dovetail_plugins.layers.mixers.mamba import MambaMixer
from dovetail_plugins.layers.mixers.mamba2 import Mamba2Mixer
from dovetail_plugins.model_types.mamba import mamba2_sizes, mamba_sizes


class MambaLayer(DecoderLayer):
    """One layer: a mixer after a norm, added to its input."""

    def __init__(self, context: BuildContext, name: str, config: DecoderConfig, layer: int) -> None:
        nn.Module.__init__(self)
        self.norm = config.norm(context, context.model.hidden_size, eps=config.norm_eps)
        self.mixer = self.build_mixer(context, f"{name}.mixer")

    def build_mixer(self, context: BuildContext, name: str) -> nn.Module:
        """Return a module of (x, residual), both [T, E]."""
        return MambaMixer(context, name, mamba_sizes(context.model.hf_config))

    def forward(self, x: torch.Tensor, ropes: Mapping[str, Rope]) -> torch.Tensor:
        """Shapes: x [T, E] -> [T, E]"""
        out: torch.Tensor = self.mixer(self.norm(x), x)
        return out


class MambaForCausalLM(DecoderForCausalLM):
    """Mamba with a head, tied unless the checkpoint says otherwise."""

    info = Info(summary="Mamba 1", source="https://arxiv.org/abs/2312.00752")
    model_class = UnrotatedModel
    layer_class = MambaLayer

    @classmethod
    def decoder_config(cls, model: ModelSpec) -> DecoderConfig:
        """Return the usual config with Mamba's name of the norms' epsilon."""
        return usual_config(model, norm_eps=float(model.hf_config["layer_norm_epsilon"]))

    def weight_map(self) -> WeightMap:
        """Return the names: Mamba's own for the trunk, the embedding and the last norm."""
        usual = super().weight_map()
        return WeightMap(
            prefixes=(
                ("backbone.embeddings.", "model.embed_tokens."),
                ("backbone.embedding.", "model.embed_tokens."),
                ("backbone.norm_f.", "model.norm."),
                ("backbone.", "model."),
            ),
            tied=usual.tied,
        )


class FalconMambaMixer(MambaMixer):
    """A mixer whose time steps and vectors b and c are normed, without weights."""

    def __init__(self, context: BuildContext, name: str) -> None:
        config = context.model.hf_config
        sizes, eps = mamba_sizes(config), float(config.get("mixer_rms_eps", 1e-6))
        super().__init__(context, name, sizes)
        self.dt_norm = BareRMSNorm(context, sizes.time_rank, eps=eps)
        self.state_norm = BareRMSNorm(context, sizes.state, eps=eps)

    def time_and_inputs(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return each token's time step and vectors. Shapes: x [T, D] -> [T, K], [T, S], [T, S]"""
        dt, b, c = super().time_and_inputs(x)
        return self.dt_norm(dt), self.state_norm(b), self.state_norm(c)


class FalconMambaLayer(MambaLayer):
    """One layer of Falcon Mamba."""

    def build_mixer(self, context: BuildContext, name: str) -> nn.Module:
        """Return its mixer."""
        return FalconMambaMixer(context, name)


class FalconMambaForCausalLM(MambaForCausalLM):
    """Falcon Mamba with its head."""

    info = Info(summary="Falcon Mamba", source="https://arxiv.org/abs/2410.05355")
    layer_class = FalconMambaLayer


class Mamba2Layer(MambaLayer):
    """One layer of Mamba 2."""

    def build_mixer(self, context: BuildContext, name: str) -> nn.Module:
        """Return its mixer."""
        return Mamba2Mixer(context, name, mamba2_sizes(context.model.hf_config))


class Mamba2ForCausalLM(MambaForCausalLM):
    """Mamba 2 with its head."""

    info = Info(summary="Mamba 2 and Codestral Mamba", source="https://arxiv.org/abs/2405.21060")
    layer_class = Mamba2Layer

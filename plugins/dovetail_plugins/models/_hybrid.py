"""Shared by families with Mamba mixers between attention layers."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from dovetail.interfaces.model import BuildContext, WeightMap
from dovetail_plugins.layers.mixers.hybrid import HybridLayer
from dovetail_plugins.layers.mixers.mamba2 import Mamba2Mixer
from dovetail_plugins.model_types._hybrid import mamba2_sizes


def jamba_names(usual: WeightMap) -> WeightMap:
    """Return the names of Jamba's checkpoints, and of Bamba's."""
    last = tuple((f"{trunk}final_layernorm.", "model.norm.") for trunk in ("model.", ""))
    renames = (
        (".feed_forward.", ".mlp."),
        (".pre_ff_layernorm.", ".post_attention_layernorm."),
        (".router.", ".gate."),
    )
    return replace(usual, prefixes=(*usual.prefixes, *last), renames=renames)


class MambaLayer(HybridLayer):
    """One layer: a Mamba 2 mixer or attention, and a feed-forward part."""

    mixer_name = "mamba"
    mlp_name = "feed_forward"

    def build_mixer(self, context: BuildContext, name: str) -> nn.Module:
        """Return the layer's mixer."""
        return Mamba2Mixer(context, name, mamba2_sizes(context.model.hf_config))

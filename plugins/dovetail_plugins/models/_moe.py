"""Shared by the mixture-of-experts families: which layers are sparse, routing, and experts that
compute every token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from dovetail.errors import ConfigError
from dovetail.interfaces.model import BuildContext, WeightMap
from dovetail.interfaces.quantization import Gate
from dovetail.layers.activation import gate
from dovetail.layers.decoder import DecoderConfig, DecoderLayer, GatedMLP
from dovetail_plugins.layers.moe import MoE
from dovetail_plugins.layers.routing import RoutingRule

SPARSE_BLOCK = ".block_sparse_moe."
"""The name of a mixture in checkpoints of Mixtral and of later families."""
CORRECTION_BIAS = (".gate.e_score_correction_bias", ".e_score_correction_bias")
"""Checkpoints store a correction bias next to the router's matrix."""


def num_experts(config: Mapping[str, Any]) -> int:
    """Return X under whichever name the config gives it. Raises: ConfigError when absent."""
    for key in ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"):
        if config.get(key) is not None:
            return int(config[key])
    raise ConfigError("the number of experts is missing.", where="config.json: num_experts")


def is_sparse(config: Mapping[str, Any], layer: int) -> bool:
    """Return whether the Qwen families give this layer experts instead of one MLP."""
    step = int(config.get("decoder_sparse_step", 1))
    is_dense = layer in (config.get("mlp_only_layers") or ())
    return not is_dense and num_experts(config) > 0 and (layer + 1) % step == 0


def softmax_rule(config: Mapping[str, Any], *, renormalizes: bool | None = None) -> RoutingRule:
    """Return the rule of families that pick the most likely experts; `renormalizes` None: as the
    config's norm_topk_prob says."""
    if renormalizes is None:
        renormalizes = bool(config.get("norm_topk_prob", False))
    return RoutingRule(num_picked=int(config["num_experts_per_tok"]), renormalizes=renormalizes)


def lettered(names: WeightMap) -> WeightMap:
    """Return the names of a decoder whose experts are Mixtral's: w1, w3, w2 of each are gate, up,
    down, in a `block_sparse_moe`."""
    letters = {"w1": ("gate_up_proj", "gate"), "w3": ("gate_up_proj", "up")}
    return replace(
        names,
        renames=((SPARSE_BLOCK, ".mlp."), (".w2.", ".down_proj.")),
        fused={**names.fused, **letters},
    )


def sigmoid_rule(config: Mapping[str, Any]) -> RoutingRule:
    """Return the rule of DeepSeek-V3 and of those that route like it."""
    return RoutingRule(
        num_picked=int(config["num_experts_per_tok"]),
        scoring="sigmoid",
        renormalizes=bool(config["norm_topk_prob"]),
        least_sum=1e-20,
        factor=float(config["routed_scaling_factor"]),
        num_groups=int(config.get("n_group") or 1),
        num_kept_groups=int(config.get("topk_group") or 1),
        group_score="two_best",
    )


def clamped(act: str, limit: float) -> Gate:
    """Return the gate act(g) u of clamped halves: g to at most `limit`, u to [-limit, limit]. A
    limit of 0 or less clamps nothing."""
    if limit <= 0:
        return gate(act)
    inner = gate(act).function

    def function(x: torch.Tensor) -> torch.Tensor:
        return inner(x.clamp(max=limit))

    def halves(gate_up: torch.Tensor) -> torch.Tensor:
        first, second = gate_up.chunk(2, dim=-1)
        return function(first) * second.clamp(-limit, limit)

    known = "silu_clamped" if inner is F.silu else ""
    return Gate(name="", function=function, halves=halves, of_experts=known, limit=limit)


class SharedMoE(MoE):
    """Picked experts plus shared ones, which compute every token as one MLP of their joint size.

    `shared` is that MLP's name in the checkpoint; it is `shared_experts` here. With `shared_inner`
    0 there is none. The picked experts' gate is `picked_act`, if it is not `act`."""

    def __init__(
        self,
        context: BuildContext,
        name: str,
        *,
        act: str | Gate,
        shared_inner: int,
        shared: str = "shared_experts",
        shared_bias: bool = False,
        picked_act: str | Gate | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(context, name, act=picked_act or act, **settings)
        self.shared_experts: GatedMLP | None = None
        if shared_inner:
            self.shared_experts = GatedMLP(
                context, f"{name}.{shared}", inner=shared_inner, act=act, bias=shared_bias
            )

    def forward(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """Shapes: x, residual [T, E] -> [T, E]"""
        if self.shared_experts is not None:
            residual = self.shared_experts(x, residual)
        return super().forward(x, residual)


class DenseFirstLayer(DecoderLayer):
    """A layer of DeepSeek-V3's mixture, or of one MLP in the first layers."""

    def build_mlp(
        self, context: BuildContext, name: str, config: DecoderConfig, layer: int
    ) -> nn.Module:
        """Return the layer's feed-forward part."""
        settings = context.model.hf_config
        if layer < int(settings["first_k_dense_replace"]):
            return super().build_mlp(context, name, config, layer)
        inner = int(settings["moe_intermediate_size"])
        return SharedMoE(
            context,
            name,
            num_experts=num_experts(settings),
            rule=sigmoid_rule(settings),
            inner=inner,
            act=config.hidden_act,
            shared_inner=int(settings.get("n_shared_experts") or 0) * inner,
            routes_in_float32=True,
            has_correction_bias=True,
        )

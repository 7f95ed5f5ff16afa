"""What the mixture-of-experts families share: which layers are sparse, and how they route."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail.errors import ConfigError
from dovetail.layers.routing import RoutingRule


def num_experts(config: Mapping[str, Any]) -> int:
    """Return X under whichever name the config gives it. Raises: ConfigError when absent."""
    for key in ("num_local_experts", "num_experts"):
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

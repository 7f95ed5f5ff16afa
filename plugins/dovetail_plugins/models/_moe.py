"""What the mixture-of-experts families share: which layers are sparse, and their weight names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail.errors import ConfigError


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

"""What the Qwen families share: the switch that lets the upper layers slide."""

from __future__ import annotations

from typing import Any

from dovetail.interfaces.spec import ModelSpec
from dovetail.layers.decoder import FULL, SLIDING


def qwen_window_layers(model: ModelSpec) -> dict[str, Any]:
    """Return the config fields: a switch, and a number of full layers first."""
    config = model.hf_config
    if not config.get("use_sliding_window") or not config.get("sliding_window"):
        return {"layer_types": (FULL,) * model.num_layers}
    first = int(config.get("max_window_layers", 28))
    derived = [FULL if i < first else SLIDING for i in range(model.num_layers)]
    return {
        "layer_types": tuple(config.get("layer_types") or derived),
        "window_tokens": config["sliding_window"],
    }

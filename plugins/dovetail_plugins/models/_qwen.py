"""Shared by the Qwen families: the switch that lets the upper layers slide."""

from __future__ import annotations

from typing import Any

from dovetail.errors import ConfigError
from dovetail.interfaces.data.spec import ModelSpec
from dovetail.layers.decoder import FULL, SLIDING


def qwen_window_layers(model: ModelSpec, *, alternates: bool = False) -> dict[str, Any]:
    """Return the config fields: a switch and a number of initial full layers, or, with
    `alternates`, every other layer slides.

    Raises: ConfigError if layers of the list slide and the switch is off.
    """
    config = model.hf_config
    window, kinds = config.get("sliding_window"), config.get("layer_types")
    if not config.get("use_sliding_window") or not window:
        if window and SLIDING in (kinds or ()):
            raise ConfigError(
                "layer_types has sliding layers, and use_sliding_window is off.",
                where="config.json: layer_types",
                fix="set use_sliding_window, or leave layer_types out.",
            )
        return {"layer_types": (FULL,) * model.num_layers}
    first = int(config.get("max_window_layers", 28))
    layers = range(model.num_layers)
    slides = [i < first and i % 2 == 0 if alternates else i >= first for i in layers]
    derived = [SLIDING if one else FULL for one in slides]
    return {"layer_types": tuple(kinds or derived), "window_tokens": window}

"""SmolLM3: Llama without positions in every fourth layer.

Source: Bakouch et al., SmolLM3, 2025; Yang et al., Rope to Nope and Back Again, 2025.
"""

from __future__ import annotations

from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.plugin import Info
from dovetail.layers.decoder import FULL, DecoderConfig, DecoderForCausalLM, usual_config


class SmolLM3ForCausalLM(DecoderForCausalLM):
    """SmolLM3 with a head."""

    info = Info(summary="SmolLM3", source="https://huggingface.co/HuggingFaceTB/SmolLM3-3B")

    @classmethod
    def decoder_config(cls, model: ModelSpec) -> DecoderConfig:
        """Return the config; `no_rope_layers` has a 0 for each layer without positions."""
        config, numbers = model.hf_config, range(model.num_layers)
        every = int(config["no_rope_layer_interval"])
        rotated = config.get("no_rope_layers") or [(i + 1) % every for i in numbers]
        has_windows = bool(config.get("use_sliding_window") and config.get("sliding_window"))
        derived = ["sliding_attention" if has_windows and not rotated[i] else FULL for i in numbers]
        return usual_config(
            model,
            rope_theta=2e6,
            unrotated=frozenset(i for i in numbers if not rotated[i]),
            layer_types=tuple(config.get("layer_types") or derived),
            window_tokens=config.get("sliding_window"),
        )

"""Command R and Command R7B/A (Cohere 1 and 2): parallel attention and MLP after one layer norm
without bias, adjacent rotary pairs; Cohere 2 adds windows, and has no positions in full layers.

Source: the model cards of c4ai-command-r-v01 and c4ai-command-r7b-12-2024.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.plugin import Info
from dovetail.layers.decoder import (
    SLIDING,
    DecoderConfig,
    DecoderForCausalLM,
    usual_config,
    windows_by_layer,
)
from dovetail.layers.norm import LayerNorm
from dovetail_plugins.layers.attention.head_norm import LayerNormPerHead


def cohere_config(model: ModelSpec, **changes: Any) -> DecoderConfig:
    """Return the common config of both, with `changes` applied."""
    config = model.hf_config
    return usual_config(
        model,
        norm=partial(LayerNorm, bias=False),
        norm_eps=float(config["layer_norm_eps"]),
        parallel_norms=1,
        is_interleaved=True,
        logit_scale=float(config["logit_scale"]),
        **changes,
    )


class CohereForCausalLM(DecoderForCausalLM):
    """Command R with a head."""

    info = Info(
        summary="Command R (Cohere)", source="https://huggingface.co/CohereLabs/c4ai-command-r-v01"
    )

    @classmethod
    def decoder_config(cls, model: ModelSpec) -> DecoderConfig:
        """Return the config: heads may have layer norms, with a different weight for each."""
        has_norms = bool(model.hf_config.get("use_qk_norm", False))
        return cohere_config(model, qk_norm=has_norms, head_norm=LayerNormPerHead, rope_theta=5e5)


class Cohere2ForCausalLM(DecoderForCausalLM):
    """Command R7B and Command A with a head."""

    info = Info(
        summary="Command R7B and Command A (Cohere 2)",
        source="https://huggingface.co/CohereLabs/c4ai-command-r7b-12-2024",
    )

    @classmethod
    def decoder_config(cls, model: ModelSpec) -> DecoderConfig:
        """Return the config: layers without a window are without positions."""
        every = int(model.hf_config.get("sliding_window_pattern") or 4)
        windows = windows_by_layer(model, every=every)
        has_windows = windows["window_tokens"] is not None
        unrotated = frozenset(
            i for i, kind in enumerate(windows["layer_types"]) if kind != SLIDING or not has_windows
        )
        return cohere_config(model, unrotated=unrotated, **windows)

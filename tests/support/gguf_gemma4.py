"""The projectors of Gemma 4 as llama.cpp's converter writes them: encoders of images and of sounds.

Shares nothing with the reader.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
LIMITS = (".input_min", ".input_max", ".output_min", ".output_max")


def changes(config: dict[str, Any], name: str, values: Array) -> Iterator[tuple[str, Array]]:
    values = values.reshape(1) if values.ndim == 0 else values
    name = name.replace(".linear.weight", ".weight")
    name = name.replace("model.vision_tower.encoder.", "vision_model.model.")
    name = name.replace("model.audio_tower.", "conformer.")
    if name.endswith(("position_embedding_table", "per_dim_scale")):
        name += ".weight"
    if name.endswith("per_dim_scale.weight"):
        values = np.log1p(np.exp(values))
    elif name.endswith("patch_embedder.input_proj.weight"):
        patch = config["vision_config"]["patch_size"]
        values = values.reshape(len(values), patch, patch, 3).transpose(0, 3, 1, 2)
    elif "depthwise_conv1d" in name:
        values = values[:, 0]
    yield name, values


def keys(writer: Any, config: dict[str, Any], processor: dict[str, Any]) -> None:
    writer.add_clip_vision_projector_type("gemma4v")
    if config.get("audio_config"):
        writer.add_clip_audio_projector_type("gemma4a")
        audio = {**config["audio_config"], "intermediate_size": 128, "num_mel_bins": 16}
        add_audio(writer, {**config, "audio_config": audio})


def add_audio(writer: Any, config: dict[str, Any]) -> None:
    audio = config["audio_config"]

    def of(*names: str) -> int:
        return next(audio[name] for name in names if name in audio)

    writer.add_clip_has_audio_encoder(True)
    writer.add_audio_projection_dim(config["text_config"]["hidden_size"])
    writer.add_audio_embedding_length(of("d_model", "hidden_size"))
    writer.add_audio_feed_forward_length(of("encoder_ffn_dim", "intermediate_size"))
    writer.add_audio_block_count(of("encoder_layers", "num_hidden_layers"))
    writer.add_audio_head_count(of("encoder_attention_heads", "num_attention_heads"))
    writer.add_audio_num_mel_bins(audio["num_mel_bins"])
    writer.add_audio_attention_layernorm_eps(1e-5)

"""The projector of MiniCPM-V 4.6 as llama.cpp's converter writes it. Shares nothing with the
reader."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
_MERGED = {
    "vit_merger.layer_norm1": "v.vit_merger.ln1",
    **{f"vit_merger.self_attn.{one}_proj": f"v.vit_merger.attn_{one}"
       for one in ("q", "k", "v", "out")},
    "vit_merger.pre_norm": "v.vit_merger.ds_ln",
    "vit_merger.linear_1": "v.vit_merger.ds_ffn_up",
    "vit_merger.linear_2": "v.vit_merger.ds_ffn_down",
    "merger.mlp.0.pre_norm": "mm.input_norm",
    "merger.mlp.0.linear_1": "mm.up",
    "merger.mlp.0.linear_2": "mm.down",
}  # fmt: skip
"""MiniCPM-V 4.6's parts after blocks, which the package does not map yet."""


def changes(config: dict[str, Any], name: str, values: Array) -> Iterator[tuple[str, Array]]:
    stem, _, leaf = name.removeprefix("model.").removeprefix("vision_tower.").rpartition(".")
    if stem in _MERGED:
        yield f"{_MERGED[stem]}.{leaf}", values
    else:
        older = "vision_tower.vision_model."  # a word more that checkpoints had until 2025
        yield name.removeprefix("model.").replace("vision_tower.", older), values


def keys(writer: Any, config: dict[str, Any], processor: dict[str, Any]) -> None:
    writer.kv_data[0].pop("clip.vision.image_size")
    writer.add_vision_image_size(processor["scale_resolution"])
    writer.add_vision_projector_scale_factor(4)
    writer.add_array("clip.vision.wa_layer_indexes", [config["insert_layer_id"]])
    writer.add_vision_use_gelu(True)

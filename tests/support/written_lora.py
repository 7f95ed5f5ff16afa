"""A LoRA adapter in PEFT's layout, written without PEFT."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

MODULE = "base_model.model.model.layers.{layer}.self_attn.{name}"
SIZES = {"q_proj": 32, "v_proj": 16}
DORA_SIZES = {"o_proj": 32}
"""All parts of a matrix have magnitudes, or none."""
CONFIG, FILE = "adapter_config.json", "adapter_model.safetensors"


def write_lora(
    folder: Path, *, seed: int = 0, rank: int = 4, is_dora: bool = False, num_layers: int = 2
) -> Path:
    """Write a LoRA as PEFT would; `is_dora`: with magnitudes."""
    folder.mkdir()
    sizes = DORA_SIZES if is_dora else SIZES
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for layer in range(num_layers):
        for name, size in sizes.items():
            module = MODULE.format(layer=layer, name=name)
            tensors[f"{module}.lora_A.weight"] = torch.randn(rank, 32, generator=generator) * 0.3
            tensors[f"{module}.lora_B.weight"] = torch.randn(size, rank, generator=generator) * 0.3
            if is_dora:
                magnitudes = torch.rand(size, generator=generator) + 0.5
                tensors[f"{module}.lora_magnitude_vector"] = magnitudes
    save_file(tensors, folder / FILE)
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": 8, "target_modules": list(sizes)}
    config |= {"use_dora": True} if is_dora else {}
    (folder / CONFIG).write_text(json.dumps(config))
    return folder

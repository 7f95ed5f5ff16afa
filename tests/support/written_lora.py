"""A LoRA adapter in PEFT's layout, written without PEFT."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

MODULE = "base_model.model.model.layers.{layer}.self_attn.{name}"
SIZES = {"q_proj": 32, "v_proj": 16}
CONFIG, FILE = "adapter_config.json", "adapter_model.safetensors"


def write_lora(folder: Path, *, seed: int = 0, rank: int = 4) -> Path:
    """Write a LoRA as PEFT would."""
    folder.mkdir()
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for layer in range(2):
        for name, size in SIZES.items():
            module = MODULE.format(layer=layer, name=name)
            tensors[f"{module}.lora_A.weight"] = torch.randn(rank, 32, generator=generator) * 0.3
            tensors[f"{module}.lora_B.weight"] = torch.randn(size, rank, generator=generator) * 0.3
    save_file(tensors, folder / FILE)
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": 8, "target_modules": list(SIZES)}
    (folder / CONFIG).write_text(json.dumps(config))
    return folder

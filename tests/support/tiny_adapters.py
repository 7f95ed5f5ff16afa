"""Tiny LoRA adapters as PEFT saves them, written by hand, and what transformers makes of them."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

ALPHA = 8
MODULES = ("q_proj", "v_proj", "down_proj")


def write_adapter(
    folder: Path, model: Any, *, seed: int, rank: int = 4, base: str = "", broken: bool = False
) -> Path:
    """Write adapter_config.json and adapter_model.safetensors; `broken` holds a NaN."""
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, torch.Tensor] = {}
    for name, module in model.named_modules():
        if name.endswith(MODULES):
            wide, high = module.in_features, module.out_features
            key = f"base_model.model.{name}.lora"
            tensors[f"{key}_A.weight"] = torch.randn(rank, wide, generator=generator) * 0.5
            tensors[f"{key}_B.weight"] = torch.randn(high, rank, generator=generator) * 0.5
    if broken:
        next(iter(tensors.values()))[0, 0] = float("nan")
    folder.mkdir(parents=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "base_model_name_or_path": base,
        "r": rank,
        "lora_alpha": ALPHA,
        "target_modules": list(MODULES),
        "task_type": "CAUSAL_LM",
    }
    (folder / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def merged(model: Any, folder: Path) -> Any:
    """Return a copy of transformers' model with an adapter added to its weights."""
    config = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
    tensors = load_file(folder / "adapter_model.safetensors")
    made = copy.deepcopy(model)
    for key, up in tensors.items():
        if ".lora_B." not in key:
            continue
        down = tensors[key.replace(".lora_B.", ".lora_A.")]
        path = key.removeprefix("base_model.model.").removesuffix(".lora_B.weight")
        with torch.no_grad():
            made.get_submodule(path).weight += config["lora_alpha"] / config["r"] * (up @ down)
    return made

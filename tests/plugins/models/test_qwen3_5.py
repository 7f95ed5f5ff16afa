"""Qwen3.5 as it is released: with parts for images and drafts, and its experts joined."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from dovetail_testing.harness import PagedModel
from dovetail_testing.tiny.families import VOCAB_SIZE
from dovetail_testing.tiny.models import write_tiny_checkpoint
from support.thread_ranks import divided_both_ways

VISION = {
    "depth": 1,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_heads": 4,
    "patch_size": 8,
    "out_hidden_size": 32,
    "num_position_embeddings": 16,
}


def as_released(path: Path, model_type: str, architecture: str) -> None:
    """Give a saved text model the names of a whole one. Mutates: the files"""
    import transformers
    from safetensors.torch import load_file, save_file

    text = json.loads((path / "config.json").read_text())
    whole = {"architectures": [architecture], "model_type": model_type, "text_config": text}
    whole["vision_config"] = VISION
    (path / "config.json").write_text(json.dumps(whole))
    tensors = load_file(path / "model.safetensors")
    named = {
        name.replace("model.", "model.language_model.", 1) if name != "lm_head.weight" else name: x
        for name, x in joined(tensors).items()
    }
    config = transformers.AutoConfig.from_pretrained(path)
    seeing = getattr(transformers, architecture)(config).model.visual.state_dict()
    named |= {f"model.visual.{name}": x for name, x in seeing.items()}
    named |= {"mtp.fc.weight": torch.zeros(2)}
    save_file(named, path / "model.safetensors", metadata={"format": "pt"})


def joined(tensors: dict[str, Any]) -> dict[str, Any]:
    """Return the tensors with the matrices of each block's experts in one."""
    blocks = {name.partition(".experts.")[0] for name in tensors if ".experts.0." in name}
    kept = {name: x for name, x in tensors.items() if ".experts." not in name}
    for block in blocks:
        names = [f"{block}.experts.{number}" for number in range(4)]
        gate, up, down = (
            torch.stack([tensors[f"{name}.{leaf}_proj.weight"] for name in names])
            for leaf in ("gate", "up", "down")
        )
        kept[f"{block}.experts.gate_up_proj"] = torch.cat([gate, up], dim=1)
        kept[f"{block}.experts.down_proj"] = down
    return kept


@pytest.mark.parametrize("name", ["Qwen3_5", "Qwen3_5Moe"])
def test_released_checkpoints_are_served(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import transformers

    architecture, own = f"{name}ForConditionalGeneration", f"{name}ForCausalLM"
    path = write_tiny_checkpoint(tmp_path, own)
    tokens = torch.randint(3, VOCAB_SIZE, (21,), generator=torch.Generator().manual_seed(3))
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    with torch.inference_mode():
        wanted = model(tokens.unsqueeze(0)).logits[0]
    as_released(path, "qwen3_5" if name == "Qwen3_5" else "qwen3_5_moe", architecture)
    whole = PagedModel.load(path, backend="torch_sdpa")
    for paged in (whole, *divided_both_ways(path, monkeypatch)):
        assert float((paged.forward([(0, tokens.tolist())])[0] - wanted).abs().max()) < 1e-4

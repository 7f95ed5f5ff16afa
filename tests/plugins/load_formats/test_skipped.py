"""Tensors that a reader has no use for are not read: those of other stages of a pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from dovetail.config.checkpoint.hf import load_model_facts
from dovetail.interfaces.data.spec import RankSpec
from dovetail.interfaces.load_format import Checkpoint
from dovetail.layers.stages import is_elsewhere
from dovetail_plugins.load_formats import _shards
from dovetail_plugins.load_formats.safetensors import Safetensors, SafetensorsOptions
from dovetail_testing.harness import build_model
from dovetail_testing.tiny.models import write_tiny_checkpoint

LAYERS = {f"layers.{i}.weight": torch.full((512,), float(i)) for i in range(6)}


@pytest.mark.parametrize("reading", ["lazy", "eager"])
def test_only_wanted_bytes_are_touched(
    reading: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two files one is not opened for tensors, and of the other a part is read."""
    for part in range(2):
        some = {name: LAYERS[name] for name in list(LAYERS)[3 * part : 3 * part + 3]}
        save_file(some, tmp_path / f"model-{part}.safetensors")
    seen: list[dict[Path, Any]] = []
    real = _shards.reading_ahead

    def noting(files: Any, num_threads: Any, wanted: Any) -> Any:
        seen.append(wanted)
        return real(files, num_threads, wanted)

    monkeypatch.setattr(_shards, "reading_ahead", noting)
    checkpoint = Checkpoint(path=str(tmp_path), is_skipped=lambda name: name[7] not in "45")
    tensors = dict(Safetensors(SafetensorsOptions(reading=reading)).tensors(checkpoint))
    assert {name: float(t[0]) for name, t in tensors.items()} == {
        "layers.4.weight": 4.0,
        "layers.5.weight": 5.0,
    }
    assert [path.name for path in seen[0]] == ["model-1.safetensors"]
    assert [num_bytes for _, num_bytes in seen[0][tmp_path / "model-1.safetensors"]] == [4096]


def test_names_of_other_stages(tmp_path: Path) -> None:
    """The first and the last of three stages, a tied head: who needs which names."""
    path = write_tiny_checkpoint(tmp_path, "Qwen2ForCausalLM", num_hidden_layers=3)
    facts = load_model_facts(path, dtype="float32")
    names = [
        *("model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"),
        *(f"model.layers.{i}.mlp.up_proj.weight" for i in range(3)),
        "model.layers.1.self_attn.q_proj.bias",
    ]
    wanted = []
    for stage in range(3):
        rank = RankSpec(world_size=3, num_stages=3, stage=stage, stage_layers=(1, 1, 1))
        model: Any = build_model(facts, rank=rank)
        found = [name for name in names if not is_elsewhere(model, model.weight_map(), name)]
        wanted.append([names.index(name) for name in found])
        assert not any(
            f"layers.{i}." in n for n, _ in model.named_parameters() for i in range(3) if i != stage
        )
    assert wanted == [[0, 1, 3], [4, 6], [0, 1, 2, 5]]

"""Tensors that a checkpoint stores joined, cut or permuted become those of transformers' model, as
transformers saves and reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter

from dovetail.errors import ConfigError
from dovetail_plugins.models._hf_conversion import Conversion, conversion_of
from support.media_verdicts import media_verdict
from support.tiny_configs import tiny_config
from support.tiny_wholes import write_whole
from support.verdicts import BACKED

KIMI = "Kimi_K25ForConditionalGeneration"
PUBLISHED = (
    ("language_model.model.blocks.", "language_model.model.layers."),
    ("vision_tower.encoder.patch_embed.", "vision_tower.patch_embed."),
    ("model.mm_projector.", "mm_projector."),
)
"""What transformers writes by other names than moonshotai/Kimi-K2.5 has."""


def whole_model(model_type: str, architecture: str) -> Any:
    import transformers

    torch.manual_seed(0)
    return getattr(transformers, architecture)(tiny_config(model_type))


def converted(model: Any) -> Conversion:
    """Return the conversion without the rules for experts, whose layers read single ones."""
    rules = [
        rule
        for rule in get_model_conversion_mapping(model, add_legacy=False)
        if isinstance(rule, WeightConverter) and "*" not in "".join(rule.source_patterns)
    ]
    return Conversion(model.config, rules)


def test_queries_keys_and_values_of_kimis_tower(tmp_path: Path) -> None:
    """They are stored in one matrix, whose turned pairs are neighbours."""
    model = whole_model("kimi_k25", KIMI)
    model.save_pretrained(tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    assert any("wqkv" in name for name in stored)
    found = dict(converted(model)(iter(stored.items())))
    for name, tensor in model.state_dict().items():
        if "vision_tower" in name and ".attn." in name and "_proj" in name:
            end = name.partition(".layers.")[2]
            (same,) = (value for key, value in found.items() if key.endswith(f"blocks.{end}"))
            assert torch.equal(same, tensor), name


def test_what_no_rule_speaks_of_passes_at_once() -> None:
    conversion = converted(whole_model("hrm_text", "HrmTextForCausalLM"))
    one = torch.ones(2)
    assert list(conversion([("model.norm.weight", one)])) == [("model.norm.weight", one)]


def test_experts_that_are_not_swapped_are_refused() -> None:
    model = whole_model("kimi_k25", KIMI)
    with pytest.raises(ConfigError, match="stored in pieces that only transformers puts together"):
        conversion_of(model, model)


def test_a_missing_part_is_told() -> None:
    conversion = converted(whole_model("minimax_m3_vl", "MiniMaxM3SparseForConditionalGeneration"))
    name = "language_model.model.layers.0.block_sparse_moe.shared_experts.gate_proj.weight"
    with pytest.raises(ConfigError, match="and not all"):
        list(conversion([(name, torch.ones(2, 2))]))


def test_kimi_with_images_by_its_published_names(tmp_path: Path) -> None:
    pytest.importorskip("torchvision", reason="Kimi's processor needs it")
    folder = write_whole(tmp_path, "kimi_k25", KIMI)
    tensors = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        for old, new in PUBLISHED:
            name = name.replace(old, new)
        tensors[name] = tensor
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    verdict = media_verdict(folder)
    assert (verdict.state, verdict.reason) == (BACKED, "")

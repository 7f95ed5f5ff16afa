"""Families whose last layers share caches: over ranks and stages, under the names of checkpoints
that see and hear, and with settings as they were published."""

from __future__ import annotations

import json
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from dovetail.config.checkpoint.hf import load_model_facts
from dovetail.errors import ConfigError
from dovetail_plugins.layers.attention.shared import SharedAttention, shared_layers
from dovetail_plugins.model_types import gemma3n, gemma4
from dovetail_plugins.model_types._shared_kv import sources
from dovetail_testing.harness import PagedModel, StagedModel, load_model
from dovetail_testing.tiny.families import VOCAB_SIZE
from dovetail_testing.tiny.models import tiny_config, write_tiny_checkpoint
from support.thread_ranks import DividedModel

TOLERANCE = 1e-4
PROMPT = torch.randint(3, VOCAB_SIZE, (15,), generator=torch.Generator().manual_seed(15)).tolist()
EXPERTS: dict[str, Any] = {
    "enable_moe_block": True,
    "num_experts": 4,
    "top_k_experts": 2,
    "moe_intermediate_size": 16,
}


def pieces(model: PagedModel | StagedModel | DividedModel) -> torch.Tensor:
    """Return the logits of a prompt in pieces."""
    cuts = ((0, 9), (9, 14), (14, 15))
    return torch.cat([model.forward([(0, PROMPT[a:b])])[0] for a, b in cuts])


@pytest.mark.parametrize(
    ("family", "fields"),
    [
        ("Gemma3nForCausalLM", {}),
        ("Gemma3nForCausalLM", {"num_key_value_heads": 1}),
        ("Gemma4ForCausalLM", {}),
        ("Gemma4ForCausalLM", {**EXPERTS, "attention_k_eq_v": True}),
        ("Gemma4ForCausalLM", {"attention_k_eq_v": True, "num_global_key_value_heads": 1}),
    ],
)
def test_ranks_compute_as_one(
    family: str, fields: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_tiny_checkpoint(tmp_path, family, **fields)
    alone = pieces(PagedModel(load_model(path)))
    divided = pieces(DividedModel(path, 2, monkeypatch))
    assert (divided - alone).abs().max() <= TOLERANCE


@pytest.mark.parametrize(
    ("family", "size"),
    [("Gemma4ForCausalLM", 0), ("Gemma4ForCausalLM", 8), ("Gemma3nForCausalLM", 8)],
)
def test_stages_compute_as_one_where_sources_are_beside_readers(
    tmp_path: Path, family: str, size: int
) -> None:
    """Inputs of single layers are made on every stage, and all states of a token are handed on."""
    kinds = ["full_attention"] * 2 + ["sliding_attention", "full_attention"] * 2
    fields = {"num_hidden_layers": 6, "layer_types": kinds, "hidden_size_per_layer_input": size}
    if family == "Gemma3nForCausalLM":
        fields |= {"intermediate_size": 48, "activation_sparsity_pattern": [0.8, *[0.0] * 5]}
    path = write_tiny_checkpoint(tmp_path, family, **fields)
    alone = pieces(PagedModel(load_model(path)))
    staged = StagedModel(lambda rank: load_model(path, rank=rank), (1, 1, 4))
    assert torch.equal(pieces(staged), alone)
    assert [len(shared_layers(stage.module)) for stage in staged.stages] == [0, 0, 2]
    with pytest.raises(ConfigError, match="which is not here"):
        StagedModel(lambda rank: load_model(path, rank=rank), (4, 2))


@pytest.mark.parametrize("name", ["Gemma3n", "Gemma4"])
def test_the_text_part_of_a_checkpoint_that_sees_and_hears(tmp_path: Path, name: str) -> None:
    """Its names have another beginning, and some are of layers that read nothing of their own."""
    plain = write_tiny_checkpoint(tmp_path / "plain", f"{name}ForCausalLM")
    path = copytree(plain, tmp_path / "whole")
    tensors = load_file(path / "model.safetensors")
    renamed = {key.replace("model.", "model.language_model.", 1): v for key, v in tensors.items()}
    own = renamed["model.language_model.layers.1.self_attn.k_proj.weight"]
    more = {
        "model.language_model.layers.3.self_attn.k_proj.weight": torch.zeros_like(own),
        "model.language_model.layers.3.self_attn.k_norm.weight": torch.zeros(3),
    }
    if name == "Gemma3n":  # encoders of Gemma 4 are served, if its config.json has them
        names = ("vision_tower.stem", "audio_tower.stem", "embed_vision.embedding")
        more |= {f"model.{one}.weight": torch.zeros(2, 2) for one in names}
    save_file(renamed | more, path / "model.safetensors", metadata={"format": "pt"})
    text = json.loads((path / "config.json").read_text())
    whole = {
        "architectures": [f"{name}ForConditionalGeneration"],
        "model_type": name.lower(),
        "text_config": text,
        "tie_word_embeddings": True,
    }
    (path / "config.json").write_text(json.dumps(whole))
    found = load_model_facts(path)
    assert found.cache is not None and found.cache.sources == (0, 1, 0, 1)
    ours, theirs = (pieces(PagedModel(load_model(one))) for one in (path, plain))
    assert torch.equal(ours, theirs)


def test_readers_read_the_last_layer_of_their_kind(tmp_path: Path) -> None:
    kinds = ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]
    config = {"num_kv_shared_layers": 3}
    assert sources(config, [*kinds, *kinds[:3]]) == (0, 1, 2, 3, 2, 3, 2)
    assert sources({}, kinds) == (0, 1, 2, 3)
    with pytest.raises(ConfigError, match="no layer of the kind full_attention before them"):
        sources(config, kinds)
    path = write_tiny_checkpoint(tmp_path, "Gemma3nForCausalLM")
    readers = shared_layers(load_model(path))
    assert all(isinstance(layer, SharedAttention) for layer in readers)
    assert [layer.shares.split(".")[2] for layer in readers] == ["0", "1"]


def test_published_settings_of_gemma_4_are_those_of_transformers() -> None:
    """Which say the heads of layers that see everything once, and not layer by layer."""
    settings: dict[str, Any] = {
        "num_hidden_layers": 8,
        "num_key_value_heads": 4,
        "head_dim": 16,
        "global_head_dim": 32,
        "num_global_key_value_heads": 2,
        "attention_k_eq_v": True,
    }
    theirs = tiny_config("Gemma4ForCausalLM", **settings, layer_types=None, num_kv_shared_layers=0)
    for stated in (settings, json.loads(theirs.to_json_string())):
        heads = [gemma4.heads(stated, layer) for layer in range(8)]
        wanted = [theirs.per_layer_config[i] for i in range(8)]
        assert heads == [(one.num_key_value_heads, one.head_dim) for one in wanted]
        assert list(gemma4.layer_types(stated)) == theirs.layer_types
        assert gemma4.cache(stated).second_heads == (2, 32)
    odd = {**settings, "per_layer_config": {"0": {"head_dim": 32}, "1": {"head_dim": 64}}}
    with pytest.raises(ConfigError, match="3 shapes"):
        gemma4.cache(odd)


def test_rotations_that_gemma_4_leaves_out(tmp_path: Path) -> None:
    path = write_tiny_checkpoint(tmp_path, "Gemma4ForCausalLM")
    whole = pieces(PagedModel(load_model(path)))
    config = json.loads((path / "config.json").read_text())
    assert config.pop("rope_parameters") == gemma4.ROPE
    (path / "config.json").write_text(json.dumps(config))
    assert torch.equal(pieces(PagedModel(load_model(path))), whole)


def test_what_gemma_3n_leaves_out(tmp_path: Path) -> None:
    """Kinds of layers and shares of gates are derived as transformers derives them."""
    theirs = tiny_config(
        "Gemma3nForCausalLM",
        num_hidden_layers=12,
        num_kv_shared_layers=5,
        layer_types=None,
        activation_sparsity_pattern=None,
        intermediate_size=48,
    )
    stated = json.loads(theirs.to_json_string())
    del stated["layer_types"]
    assert list(gemma3n.layer_types(stated)) == theirs.layer_types
    assert gemma3n.cache(stated).sources == (*range(7), 6, 6, 4, 6, 6)
    path = write_tiny_checkpoint(
        tmp_path, "Gemma3nForCausalLM", num_hidden_layers=12, num_kv_shared_layers=5,
        layer_types=None, activation_sparsity_pattern=None, intermediate_size=48,
    )  # fmt: skip
    whole = pieces(PagedModel(load_model(path)))
    config = json.loads((path / "config.json").read_text())
    for name in ("layer_types", "activation_sparsity_pattern"):
        del config[name]
    (path / "config.json").write_text(json.dumps(config))
    assert torch.equal(pieces(PagedModel(load_model(path))), whole)

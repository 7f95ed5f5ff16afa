"""Dots3 Note against transformers: rows whole, cut and together, longer than the window and than
what an indexer picks; released settings and names; int8; the room that its cache takes; and what is
refused."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from dovetail import LLM, SamplingParams
from dovetail.config.checkpoint.hf import load_model_facts
from dovetail.config.rules.steps.cache_size import kv_bytes
from dovetail.engine.kv.kv_groups import blocks_for, plan_layout
from dovetail.errors import ConfigError
from dovetail.interfaces.attention import AttentionBackend
from dovetail.interfaces.data.step import EntryLayer, EntryPart
from dovetail_plugins.model_types.dots3_note import layer_sizes, packs, ropes
from dovetail_testing.harness import PagedModel, load_model, load_plugin
from dovetail_testing.tiny.families import FAMILIES, VOCAB_SIZE
from dovetail_testing.tiny.models import randomize, tiny_config, write_tiny_checkpoint

NAME = "Dots3NoteForCausalLM"
TOKENS = torch.randint(3, VOCAB_SIZE, (120,), generator=torch.Generator().manual_seed(2)).tolist()
CUTS = [0, 7, 44, 46, *range(47, 91)]


def logits_of(model: Any, tokens: list[int]) -> torch.Tensor:
    """Return transformers' logits."""
    with torch.inference_mode():
        found: torch.Tensor = model.eval()(input_ids=torch.tensor([tokens])).logits[0]
    return found


@pytest.mark.parametrize("backend", ["native_cpu", "torch_sdpa", None])
def test_windows_and_picks(tmp_path: Path, backend: str | None) -> None:
    path = write_tiny_checkpoint(tmp_path, NAME, index_topk=24, attention_bias=True)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, attn_implementation="eager"
    )
    wanted = logits_of(theirs, TOKENS)
    chosen = backend and load_plugin(AttentionBackend, "attention_backend", backend)  # type: ignore[type-abstract]
    model = PagedModel(load_model(path), backend=chosen or None, block_tokens=16)
    (whole,) = model.forward([(0, TOKENS)])
    parts = [model.forward([(1, TOKENS[a:b]), (2, TOKENS[a:b])]) for a, b in pairwise(CUTS)]
    model.share(2, 3, 64)
    hit, more = model.forward([(3, TOKENS[64:]), (1, TOKENS[90:])])
    assert (whole - wanted).abs().max() < 1e-4
    assert (hit - wanted[64:]).abs().max() < 1e-4
    for row in (0, 1):
        cut = torch.cat([part[row] for part in parts] + [more] * (not row))
        assert (cut - wanted[: len(cut)]).abs().max() < 1e-4


TEXT = FAMILIES[NAME][1]
RELEASED: dict[str, Any] = {
    "layer_types": ["full_attention", *["sliding_attention"] * 2, "full_attention"],
    "moe_layer_freq": [0, 1, 1, 1],
    "sliding_window_size": TEXT["sliding_window"],
    "moe_shared_expert_intermediate_size": TEXT["shared_experts_intermediate_size"],
    "rope_theta": 80e6,
    "swa_rope_theta": 5e4,
    **{name: value for name, value in TEXT.items() if name.startswith("swa_")},
}
NEWER = ("per_layer_config", "rope_parameters", "mlp_layer_types", "sliding_window")


def test_checkpoints_with_encoders(tmp_path: Path) -> None:
    """As transformers writes one, and as released ones have their settings and names."""
    encoder = {"hidden_size": 32, "intermediate_size": 16, "num_hidden_layers": 1}
    vision = {"adapter_in_dim": 32, "adapter_out_dim": 32, "num_attention_heads": 2}
    sound = {"adapter_input_size": 32, "adapter_out_dim": 32, "num_attention_heads": 2}
    config = transformers.Dots3NoteConfig(
        text_config=tiny_config(NAME).to_dict(),
        vision_config={**encoder, **vision, "mlp_layer_types": ["dense"]},
        audio_config={**encoder, **sound, "feature_size": 8, "downsample_hidden_size": 4},
    )
    torch.manual_seed(3)  # a draw in which two tokens nearly tie for a pick has no one answer
    model = transformers.Dots3NoteForConditionalGeneration(config)
    randomize(model, seed=3)
    model.save_pretrained(tmp_path)
    wanted = logits_of(model, TOKENS)
    (found,) = PagedModel(load_model(tmp_path)).forward([(0, TOKENS)])
    assert (found - wanted).abs().max() < 1e-4
    file, settings = tmp_path / "config.json", json.loads((tmp_path / "config.json").read_text())
    own = {k: v for k, v in settings.pop("text_config").items() if k not in (*NEWER, "model_type")}
    own.pop("shared_experts_intermediate_size")
    file.write_text(json.dumps({**settings, **own, **RELEASED}))
    weights = tmp_path / "model.safetensors"
    tensors = load_file(weights)
    assert {"model.layers.0.self_attn.g_proj.weight"} <= set(tensors)
    assert any(name.startswith("vision_encoder.") for name in tensors)
    tensors["model.layers.4.self_attn.g_proj.weight"] = torch.ones(4, 32)  # a drafter's
    save_file(tensors, weights, metadata={"format": "pt"})
    (found,) = PagedModel(load_model(tmp_path)).forward([(0, TOKENS)])
    assert (found - wanted).abs().max() < 1e-4


def test_int8(tmp_path: Path) -> None:
    path = write_tiny_checkpoint(tmp_path, NAME)
    (wanted,) = PagedModel(load_model(path)).forward([(0, TOKENS)])
    params = SamplingParams(temperature=0, max_tokens=1, logprobs=-1, ignore_eos=True)
    fields: dict[str, Any] = {"max_model_len": 128, "num_gpu_blocks_override": 32}
    with LLM(str(path), quantization="int8", max_logprobs=-1, **fields) as llm:
        (answer,) = llm.generate([TOKENS], params, use_tqdm=False)
    assert answer.outputs[0].logprobs is not None
    (top,) = answer.outputs[0].logprobs
    found = torch.empty(VOCAB_SIZE)
    found[list(top.top_ids)] = torch.tensor(top.top_logprobs)
    both = torch.stack([found, wanted[-1].log_softmax(-1)])
    assert 0.9 < torch.corrcoef(both)[0, 1] < 0.9999


PUBLISHED: dict[str, Any] = {"model_type": "dots3_note", "architectures": [NAME]}


def test_the_cache_takes_the_room_that_is_said(tmp_path: Path) -> None:
    """The published sizes; a row of 4, 40 and 400 thousand tokens. Layers with an indexer have 704
    numbers a token, windowed ones 1088."""
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED))
    facts = load_model_facts(tmp_path, dtype="bfloat16")
    settings = facts.hf_config
    whole, *windows = packs(settings, range(46))
    assert whole.layers == (0, 1, *range(5, 46, 4))
    assert sum(len(pack.layers) for pack in windows) == 33
    layers = []
    for pack in (whole, *windows):
        sizes = [layer_sizes(settings, i) for i in pack.layers]
        numbers = [one.cached + one.index_size for one in sizes]
        parts = tuple(EntryPart(name="", size=size, tokens=1) for size in numbers)
        layers.append(
            EntryLayer(
                name=pack.name, parts=parts, dtype="bfloat16", window_tokens=pack.window_tokens
            )
        )
    layout = plan_layout(layers, block_tokens=16, num_blocks=100)
    assert layout.all_bytes == 13 * 704 * 16 * 2  # no more than what is read of all tokens
    for num_tokens in (4_000, 40_000, 400_000):
        real = blocks_for(layout, num_tokens, 2048) * layout.all_bytes
        assert real <= kv_bytes(facts, "bfloat16", num_tokens, 2048) <= 1.3 * real


def test_rotations_by_kind() -> None:
    """Of older settings; of one for all; and of a flag's beside those of each kind."""
    kinds = {"num_hidden_layers": 3}
    usual = ropes(kinds)
    assert [usual[k]["rope_theta"] for k in ("indexed_attention", "sliding_attention")] == [
        8e7,
        5e4,
    ]
    yarn = {"rope_type": "yarn", "factor": 4.0}
    stretched = ropes({**kinds, "rope_scaling": yarn, "rope_theta": 7.0})
    assert stretched == {kind: {"rope_theta": 7.0, **yarn} for kind in usual}
    flagged = ropes({**kinds, "rope_parameters": {**usual, **yarn}})
    assert flagged["indexed_attention"] == {"rope_theta": 8e7, **yarn}
    assert flagged["sliding_attention"] == {"rope_theta": 5e4}


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"q_lora_rank": None}, "no latents"),
        ({"layer_types": ["chunked_attention"] * 4}, "of the kind chunked_attention"),
    ],
)
def test_what_is_refused(fields: dict[str, object], why: str, tmp_path: Path) -> None:
    path = write_tiny_checkpoint(tmp_path, NAME)
    settings = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(settings | fields))
    with pytest.raises(ConfigError, match=why):
        load_model(path)

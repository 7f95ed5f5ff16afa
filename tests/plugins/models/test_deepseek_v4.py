"""DeepSeek V4 against transformers: rows whole, cut and together, where a query picks 3 of 37
entries; released settings and names; the room that its cache takes; and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from dovetail.config.checkpoint.hf import load_model_facts
from dovetail.config.rules.steps.cache_size import kv_bytes
from dovetail.engine.kv.kv_groups import blocks_for, plan_layout
from dovetail.errors import ConfigError
from dovetail.interfaces.attention import AttentionBackend
from dovetail.interfaces.data.step import CachedLayer, EntryLayer, EntryPart, LatentLayer
from dovetail_testing.harness import PagedModel, load_model, load_plugin
from dovetail_testing.tiny.families import VOCAB_SIZE
from dovetail_testing.tiny.models import write_tiny_checkpoint
from support.thread_ranks import DividedModel

NAME = "DeepseekV4ForCausalLM"
RATES = {"compressed_sparse_attention": 4, "heavily_compressed_attention": 16}
TOKENS = torch.randint(3, VOCAB_SIZE, (150,), generator=torch.Generator().manual_seed(2)).tolist()
CUTS = [(0, 7), (7, 44), (44, 46), *((i, i + 1) for i in range(46, 90))]


def expected(path: Path) -> torch.Tensor:
    """Return transformers' logits."""
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, attn_implementation="eager"
    )
    with torch.inference_mode():
        found: torch.Tensor = theirs.eval()(input_ids=torch.tensor([TOKENS])).logits[0]
    return found


@pytest.mark.parametrize("backend", ["native_cpu", "torch_sdpa", None])
def test_queries_attend_to_entries(tmp_path: Path, backend: str | None) -> None:
    path = write_tiny_checkpoint(tmp_path, NAME, compress_rates=RATES, max_position_embeddings=256)
    wanted = expected(path)
    chosen = backend and load_plugin(AttentionBackend, "attention_backend", backend)  # type: ignore[type-abstract]
    model = PagedModel(load_model(path), backend=chosen or None, block_tokens=16)
    (whole,) = model.forward([(0, TOKENS)])
    parts = [model.forward([(1, TOKENS[a:b]), (2, TOKENS[a:b])]) for a, b in CUTS]
    model.share(2, 3, 64)
    hit, more = model.forward([(3, TOKENS[64:]), (1, TOKENS[90:])])
    assert (whole - wanted).abs().max() < 1e-4
    assert (hit - wanted[64:]).abs().max() < 1e-4
    for row in (0, 1):
        cut = torch.cat([part[row] for part in parts] + [more] * (not row))
        assert (cut - wanted[: len(cut)]).abs().max() < 1e-4


RELEASED: dict[str, Any] = {
    "compress_ratios": [0, 4, 128],
    "num_hash_layers": 1,
    "qk_rope_head_dim": 8,
    "rope_theta": 500.0,
    "compress_rope_theta": 4000.0,
    "rope_scaling": {"type": "yarn", "factor": 4, "original_max_position_embeddings": 32},
}
GIVEN = ("layer_types", "mlp_layer_types", "compress_rates", "rope_parameters")
BARE = {"model.embed_tokens.": "embed.", "model.hc_head.hc_": "hc_head_", "model.": ""}


def test_released_settings_and_names(tmp_path: Path) -> None:
    fields = {"compress_rope_theta": 4000.0, "rope_theta": 500.0, "max_position_embeddings": 256}
    heavy = RATES | {"heavily_compressed_attention": 128}
    path = write_tiny_checkpoint(tmp_path, NAME, compress_rates=heavy, **fields)
    wanted = expected(path)
    settings = json.loads((path / "config.json").read_text())
    settings = {k: v for k, v in settings.items() if k not in GIVEN} | RELEASED
    (path / "config.json").write_text(json.dumps(settings))
    tensors = {}
    for name, tensor in load_file(path / "model.safetensors").items():
        old = next((old for old in BARE if name.startswith(old)), "")
        tensors[BARE.get(old, "") + name.removeprefix(old)] = tensor
    tensors["mtp.0.attn.wkv.weight"] = torch.ones(4, 4)
    assert {"hc_head_fn", "layers.1.attn.compressor.ape", "head.weight"} <= set(tensors)
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    found = PagedModel(load_model(path), block_tokens=128).forward([(0, TOKENS)])[0]
    assert (found - wanted).abs().max() < 1e-4


def test_the_cache_takes_the_room_that_is_said(tmp_path: Path) -> None:
    """The published sizes; a row of 4, 40 and 400 thousand tokens."""
    path = write_tiny_checkpoint(tmp_path, NAME)
    settings = json.loads((path / "config.json").read_text())
    lists = {**dict.fromkeys((*GIVEN, "partial_rotary_factor"), None), "num_hidden_layers": 43}
    sizes = {"head_dim": 512, "index_head_dim": 128, "sliding_window": 128}
    settings = {k: v for k, v in (settings | lists | sizes).items() if v is not None}
    (path / "config.json").write_text(json.dumps(settings | {"max_position_embeddings": 1 << 20}))
    facts = load_model_facts(path, dtype="bfloat16")
    parts, layers = [], []
    for i in range(43):
        is_sparse = i > 2 and i % 2
        inputs = 4 * 640 if is_sparse else 2 * 512
        layers.append(
            LatentLayer(
                name=f"{i}", size=512, index_size=inputs, dtype="bfloat16", window_tokens=128
            )
        )
        rates = {"entries": (512, 4), "keys": (128, 4)} if is_sparse else {"entries": (512, 128)}
        parts += [EntryPart(name=f"{i}{n}", size=s, tokens=t) for n, (s, t) in rates.items()]
    every: list[CachedLayer] = [EntryLayer(name="", parts=tuple(parts), dtype="bfloat16"), *layers]
    layout = plan_layout(every, block_tokens=16, num_blocks=100)
    assert layout.block_tokens == 128
    for num_tokens in (4_000, 40_000, 400_000):
        real = blocks_for(layout, num_tokens, 2048) * layout.all_bytes
        assert real <= kv_bytes(facts, "bfloat16", num_tokens, 2048) <= 1.3 * real


E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
WHOLE = ("embed", "head.", "norm.", "compressor.", "weights_proj", ".gate.", "hc_", "sink", "ape")
"""Parts of the names of tensors that are not in float8."""


def stored(name: str, tensor: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Return a tensor as released checkpoints store it, and its exact value."""
    if tensor.dim() < 2 or any(part in name for part in WHOLE):
        return {name: tensor}, tensor
    scale_name, is_expert = name.replace(".weight", ".scale"), ".experts." in name
    group = tensor.unflatten(-1, (-1, 32)) if is_expert else tensor.unsqueeze(1)
    axes = (-1,) if is_expert else (0, 1, 2)
    largest = 6 if is_expert else 448
    scale = (group.abs().amax(axes, keepdim=True) / largest).log2().ceil().exp2()
    if not is_expert:
        values = (group / scale).squeeze(1).to(torch.float8_e4m3fn)
        scales = scale.view(1, 1).to(torch.float8_e8m0fnu)
        return {name: values, scale_name: scales}, values.float() * scale.view(1, 1)
    codes = (group.div(scale).unsqueeze(-1) - E2M1).abs().argmin(-1)
    pairs = codes.flatten(1).unflatten(1, (-1, 2))
    packed = (pairs[..., 0] | pairs[..., 1] << 4).to(torch.uint8).view(torch.int8)
    scales = scale.squeeze(-1).to(torch.float8_e8m0fnu)
    return {name: packed, scale_name: scales}, (E2M1[codes] * scale).flatten(1)


def test_experts_in_four_bits_beside_float8(tmp_path: Path) -> None:
    path = write_tiny_checkpoint(tmp_path, NAME, intermediate_size=32, moe_intermediate_size=32)
    file, tensors = path / "model.safetensors", {}
    whole = load_file(file)
    for name, tensor in list(whole.items()):
        packed, whole[name] = stored(name, tensor)
        tensors.update(packed)
    save_file(whole, file, metadata={"format": "pt"})
    (wanted,) = PagedModel(load_model(path)).forward([(0, TOKENS[:40])])
    save_file(tensors, file, metadata={"format": "pt"})
    settings = json.loads((path / "config.json").read_text())
    settings["expert_dtype"] = "fp4"
    settings["quantization_config"] = {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "scale_fmt": "ue8m0",
        "weight_block_size": [128, 128],
    }
    (path / "config.json").write_text(json.dumps(settings))
    assert {t.dtype for t in tensors.values()} >= {torch.int8, torch.float8_e4m3fn}
    (found,) = PagedModel(load_model(path)).forward([(0, TOKENS[:40])])
    assert (found - wanted).abs().max() < 1e-4


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"scoring_func": "tanh"}, "not scored by"),
        ({"layer_types": ["full_attention"] * 3}, "of the kind"),
    ],
)
def test_what_is_refused(fields: dict[str, object], why: str, tmp_path: Path) -> None:
    path = write_tiny_checkpoint(tmp_path, NAME)
    settings = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(settings | fields))
    with pytest.raises(ConfigError, match=why):
        load_model(path)


def test_wrong_tables_and_groups_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_tiny_checkpoint(tmp_path, NAME, o_groups=1)
    with pytest.raises(ConfigError, match="1 groups of heads"):
        DividedModel(path, 2, monkeypatch)
    tensors = load_file(path / "model.safetensors")
    tensors["model.layers.0.ffn.gate.tid2eid"] += 6
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    monkeypatch.undo()
    with pytest.raises(ConfigError, match="picks the experts 6 to 13"):
        load_model(path)

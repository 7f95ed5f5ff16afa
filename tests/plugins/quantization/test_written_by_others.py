"""Checkpoints that other libraries wrote, through the whole engine, against their own logits.

tests/data/quantized and tests/data/compressed_tensors hold them, with the scripts that wrote them.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from dovetail import LLM
from dovetail_testing.tiny.models import write_tiny_tokenizer
from support.dequantized import found_logprobs

DATA = Path(__file__).resolve().parents[2] / "data" / "quantized"
COMPRESSED = DATA.parent / "compressed_tensors"
CASES = sorted(file.stem for file in COMPRESSED.glob("*.safetensors"))
BOUND = 1e-3
"""Of the logits' range. Both sides multiply float activations by the same matrices."""

WITH_INT8_INPUTS = {"w8a8", "sparse_w8a8"}
ROUNDED = 2e-2
"""The same where activations are rounded to 8 bits and the library's are not."""


def copied(name: str, folder: Path, **changes: Any) -> Path:
    """Return a checkpoint with a tokenizer beside it, its quantization_config changed."""
    shutil.copytree(DATA / name, folder)
    write_tiny_tokenizer(folder)
    file = folder / "config.json"
    config = json.loads(file.read_text())
    config["quantization_config"] |= changes
    file.write_text(json.dumps(config))
    return folder


def error(path: Path, **flags: Any) -> float:
    """Return the largest distance of a logprob, in the range of the logits of its token."""
    kept = load_file(path / "logits.safetensors")
    flags.setdefault("plugin_options", {"quantization": {"activations": "float"}})
    with LLM(
        model=str(path),
        num_gpu_blocks_override=16,
        block_size=16,
        max_model_len=64,
        max_logprobs=-1,
        use_tqdm_on_load=False,
        dtype="float32",
        **flags,
    ) as llm:
        found = found_logprobs(llm, [kept["token_ids"].tolist()])
    logits = kept["logits"]
    span = logits.amax(-1, keepdim=True) - logits.amin(-1, keepdim=True)
    return float(((found - logits.log_softmax(-1)).abs() / span).max())


@pytest.mark.parametrize("name", ["gptq", "gptq_dynamic", "gptq_3_bits", "awq", "auto_round_gptq"])
def test_logits(name: str, tmp_path: Path) -> None:
    assert error(copied(name, tmp_path / "model")) <= BOUND


@pytest.mark.parametrize(
    ("name", "asked"), [("gptq", "gptq_marlin"), ("awq", "awq_marlin"), ("awq", "awq")]
)
def test_names_of_kernels_read_the_same(name: str, asked: str, tmp_path: Path) -> None:
    assert error(copied(name, tmp_path / "model"), quantization=asked) <= BOUND


@pytest.mark.parametrize(
    ("name", "file", "older"),
    [
        ("gptq", "quantize_config.json", {"bits": "bits", "group_size": "group_size"}),
        ("awq", "quant_config.json", {"bits": "w_bit", "group_size": "q_group_size"}),
    ],
)
def test_settings_in_a_file_of_their_own(
    name: str, file: str, older: dict[str, str], tmp_path: Path
) -> None:
    """As writers had them before transformers took them into config.json."""
    path = copied(name, tmp_path / "model")
    config = json.loads((path / "config.json").read_text())
    stored = config.pop("quantization_config")
    (path / "config.json").write_text(json.dumps(config))
    beside = {later: stored[key] for key, later in older.items()} | {"desc_act": False}
    (path / file).write_text(json.dumps(beside))
    assert error(path) <= BOUND


@pytest.mark.parametrize("quant_method", ["auto-round", "intel/auto-round"])
def test_auto_round_over_awq(quant_method: str, tmp_path: Path) -> None:
    changes = {"quant_method": quant_method, "packing_format": "auto_round:auto_awq"}
    assert error(copied("awq", tmp_path / "model", **changes)) <= BOUND


def checkpoint(name: str, folder: Path, **changes: Any) -> Path:
    """Return a case as a folder; logits.safetensors holds what it should give."""
    folder.mkdir()
    tensors = load_file(COMPRESSED / f"{name}.safetensors")
    kept = {key: tensors.pop(key) for key in ("token_ids", "logits")}
    save_file(kept, folder / "logits.safetensors")
    base = load_file(COMPRESSED / "base" / "model.safetensors")
    save_file({**base, **tensors}, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((COMPRESSED / "base" / "config.json").read_text())
    stored = json.loads((COMPRESSED / f"{name}.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": stored}))
    return write_tiny_tokenizer(folder)


@pytest.mark.parametrize("name", CASES)
def test_compressed_tensors(name: str, tmp_path: Path) -> None:
    bound = ROUNDED if name in WITH_INT8_INPUTS else BOUND
    assert error(checkpoint(name, tmp_path / "model")) <= bound


def test_scales_of_the_kv_cache_wait_for_a_cache_of_8_bit_floats(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = checkpoint("w4a16", tmp_path / "model", kv_cache_scheme={"num_bits": 8, "type": "float"})
    file = path / "model.safetensors"
    tensors = load_file(file)
    for name in ("k_scale", "v_scale"):
        tensors[f"model.layers.0.self_attn.{name}"] = torch.ones(1)
    save_file(tensors, file, metadata={"format": "pt"})
    with caplog.at_level("INFO"):
        assert error(path) <= BOUND
    assert "--kv-cache-dtype fp8 would use" in caplog.text

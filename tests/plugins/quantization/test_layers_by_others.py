"""Checkpoints whose layers other libraries made, through the whole engine and in memory.

tests/data/quantized holds them, with the script that wrote them (write_layers.py).
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from dovetail import LLM
from dovetail.config.config import Config
from dovetail.config.resolve import resolve
from dovetail.errors import ConfigError
from dovetail.runner.load.loader import load_model
from dovetail_kernels.cpu.library import library
from dovetail_testing.tiny.models import write_tiny_tokenizer
from support.dequantized import found_logprobs

DATA = Path(__file__).resolve().parents[2] / "data" / "quantized"
BOUND = 1e-3
"""Of the logits' range. Both sides multiply float activations by the same matrices."""
PACKED = {
    "bitsandbytes_nf4": 1.1,
    "bitsandbytes_fp4": 1.1,
    "bitsandbytes_int8": 1.1,
    "hqq_4": 1.1,
    "hqq_8": 1.15,  # float32 zero points, a pair for 32 inputs
    "modelopt_fp8": 1.1,
    "modelopt_nvfp4": 1.2,  # a float32 for every output, which has only 64 inputs here
    "torchao_int8": 1.1,
    "torchao_float8": 1.1,
    "torchao_int4": 0.6,
}
"""What a layer may take in memory, in parts of its tensors in the checkpoint."""
FULL = ("aqlm", "hqq_3", "hqq_4_axis_0")
"""Kept at more bits than they are stored in, as their docstrings say; aqlm's codebooks, of 64
points here, are filled up to 256."""
BFLOAT16 = 6e-3
"""hqq's axis 0 is kept in bfloat16."""


def copied(name: str, folder: Path) -> Path:
    """Return a checkpoint with a tokenizer beside it."""
    shutil.copytree(DATA / name, folder)
    return write_tiny_tokenizer(folder)


def flags(path: Path, **more: Any) -> dict[str, Any]:
    return {
        "model": str(path),
        "num_gpu_blocks_override": 16,
        "block_size": 16,
        "max_model_len": 64,
        "max_logprobs": -1,
        "use_tqdm_on_load": False,
        "dtype": "float32",
        **more,
    }


def error(path: Path, **more: Any) -> float:
    """Return the largest distance of a logprob, in the range of the logits of its token."""
    kept = load_file(path / "logits.safetensors")
    more = {"plugin_options": {"quantization": {"activations": "float"}}, **more}
    with LLM(**flags(path, **more)) as llm:
        found = found_logprobs(llm, [kept["token_ids"].tolist()])
    logits = kept["logits"]
    span = logits.amax(-1, keepdim=True) - logits.amin(-1, keepdim=True)
    return float(((found - logits.log_softmax(-1)).abs() / span).max())


@pytest.mark.parametrize("name", [*PACKED, *FULL])
def test_logits(name: str, tmp_path: Path) -> None:
    bound = BFLOAT16 if name == "hqq_4_axis_0" else BOUND
    assert error(copied(name, tmp_path / "model")) <= bound


@pytest.mark.parametrize("name", list(PACKED))
def test_memory(name: str, tmp_path: Path) -> None:
    path = copied(name, tmp_path / "model")
    stored = load_file(path / "model.safetensors")
    run = resolve(Config.from_fields(flags(path))).run
    module = load_model(run, torch.device("cpu")).module
    layer = "model.layers.0.mlp."
    held = sum(t.nbytes for n, t in module.named_buffers() if n.startswith(layer))
    in_file = sum(t.nbytes for n, t in stored.items() if n.startswith(layer))
    assert held <= PACKED[name] * in_file


def test_hf_quant_config_alone_names_the_method(tmp_path: Path) -> None:
    path = copied("modelopt_fp8", tmp_path / "model")
    file = path / "config.json"
    config = json.loads(file.read_text())
    del config["quantization_config"]
    file.write_text(json.dumps(config))
    assert error(path) <= BOUND


def test_int8_activations_of_bitsandbytes(tmp_path: Path) -> None:
    """Bytes: 1e-2 of the range was seen. AVX2 has 16-bit integers, which lose next to nothing."""
    options = {"quantization": {"activations": "int8"}}
    found = error(copied("bitsandbytes_int8", tmp_path / "model"), plugin_options=options)
    native = library()
    is_word = native is not None and native.isa == "avx2"
    assert found <= BOUND if is_word else BOUND < found <= 3e-2


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("bitsandbytes_nf4", {"load_in_4bit": False, "_load_in_4bit": False}, "load_in_4bit"),
        ("hqq_4", {"quant_config": {}}, "quant_config is missing"),
        ("modelopt_fp8", {"quant_algo": "W4A8_AWQ"}, 'quant_algo "W4A8_AWQ" is not read'),
        ("torchao_int8", {"quant_type": "int8_weight_only"}, "quant_type 'int8_weight_only'"),
        ("aqlm", {"nbits_per_codebook": 24}, "nbits_per_codebook 24"),
    ],
)
def test_configs_that_are_not_read(
    name: str, change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = copied(name, tmp_path / "model")
    file = path / "config.json"
    config = json.loads(file.read_text())
    config["quantization_config"] |= change
    file.write_text(json.dumps(config))
    run = resolve(Config.from_fields(flags(path))).run
    with pytest.raises(ConfigError, match=message) as caught:
        load_model(run, torch.device("cpu"))
    assert "config.json" in str(caught.value)

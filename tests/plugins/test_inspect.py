"""`dovetail inspect` against the engine: its memory is that of the loaded model's own buffers.

What inspect knows from headers is compared with what loading makes of the same files.
"""

from __future__ import annotations

import io
import json
import runpy
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from dovetail.cli.parser import Parser
from dovetail.cli.serve import add_arguments
from dovetail.config.asked import asked
from dovetail.config.engine import Config
from dovetail.config.resolve import resolve
from dovetail.inspect.facts import Inspected
from dovetail.inspect.gather import inspect
from dovetail.layers.attention import Attention
from dovetail.runner.loader import load_model, num_bytes
from dovetail.testing.gguf_files import write_gguf
from dovetail.testing.tiny_models import write_tiny_checkpoint, write_tiny_tokenizer

DATA = Path(__file__).resolve().parents[1] / "data"
ROOMY = {"hidden_size": 64, "intermediate_size": 128, "head_dim": 32}
"""Sizes whose matrices fill whole panels, fused or not."""
PANELS = 0.01
"""What fills up the last panels of the smallest matrices, in the model's bytes."""


def config_of(path: Path, *flags: str) -> Config:
    parser = Parser(prog="inspect", description="")
    add_arguments(parser)
    return asked(parser.parse([str(path), *flags]), stream=io.StringIO())


def both(path: Path, *flags: str) -> tuple[Inspected, Any]:
    """Return what inspect says and the loaded model."""
    config = config_of(path, *flags)
    found = inspect(config)
    return found, load_model(resolve(config).run, torch.device("cpu")).module


def told(found: Inspected) -> int:
    assert found.memory is not None
    assert found.memory.is_exact, found.warnings
    return found.memory.weights_bytes + found.memory.tables_bytes


@pytest.mark.parametrize(
    ("architecture", "flags"),
    [
        ("LlamaForCausalLM", ()),
        ("LlamaForCausalLM", ("--dtype", "bfloat16")),
        ("LlamaForCausalLM", ("--quantization", "int8")),
        ("LlamaForCausalLM", ("--quantization", "int4", "--dtype", "float16")),
        ("LlamaForCausalLM", ("--quantization", "fp8")),
        ("LlamaForCausalLM", ("--max-model-len", "40")),
        ("Qwen2ForCausalLM", ()),
        ("Qwen2ForCausalLM", ("--quantization", "int8")),
        ("Gemma3ForCausalLM", ()),
        ("Phi3ForCausalLM", ("--quantization", "int8")),
        ("GPT2LMHeadModel", ("--dtype", "float16")),
        ("OPTForCausalLM", ()),
    ],
)
def test_memory_of_plain_checkpoints(
    architecture: str, flags: tuple[str, ...], tmp_path: Path
) -> None:
    sizes = {} if architecture.startswith("GPT2") else ROOMY
    if architecture == "OPTForCausalLM":
        sizes = {"hidden_size": 64, "ffn_dim": 128, "word_embed_proj_dim": 64}
    path = write_tiny_checkpoint(tmp_path, architecture, **sizes)
    found, model = both(path, *flags)
    assert told(found) == num_bytes(model)
    assert found.would_start


@pytest.mark.parametrize("architecture", ["Qwen3MoeForCausalLM", "MixtralForCausalLM"])
@pytest.mark.parametrize(
    "flags", [(), ("--quantization", "int8"), ("--quantization", "experts_int8")]
)
def test_memory_and_parameters_of_experts(
    architecture: str, flags: tuple[str, ...], tmp_path: Path
) -> None:
    path = write_tiny_checkpoint(
        tmp_path, architecture, **ROOMY, moe_intermediate_size=64, num_experts=32,
        num_local_experts=32,
    )  # fmt: skip
    found, model = both(path, *flags)
    assert told(found) == num_bytes(model)
    from transformers import AutoModelForCausalLM

    theirs = AutoModelForCausalLM.from_pretrained(path)
    assert found.parameters == theirs.num_parameters()
    experts = sum(p.numel() for name, p in theirs.named_parameters() if ".experts." in name)
    assert found.active_parameters == found.parameters - experts + experts * 2 // 32


def written(name: str, folder: Path) -> Path:
    """Return a checkpoint that another library wrote, with a tokenizer."""
    if (DATA / "quantized" / name).is_dir():
        shutil.copytree(DATA / "quantized" / name, folder)
        return write_tiny_tokenizer(folder)
    source = DATA / "compressed_tensors"
    folder.mkdir()
    tensors = load_file(source / f"{name}.safetensors")
    own = {key: value for key, value in tensors.items() if key not in ("token_ids", "logits")}
    base = load_file(source / "base" / "model.safetensors")
    save_file({**base, **own}, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((source / "base" / "config.json").read_text())
    stored = json.loads((source / f"{name}.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": stored}))
    return write_tiny_tokenizer(folder)


@pytest.mark.parametrize(
    "name",
    [
        *("awq", "gptq", "gptq_3_bits", "auto_round_gptq", "modelopt_fp8", "modelopt_nvfp4"),
        *("w3a16", "w4a16", "w4a16_zeros", "w8a16", "w8a8", "w8_tensor", "act_order"),
        *("fp8", "fp8_block", "fp8_tensor", "nvfp4", "mxfp4", "aqlm", "sparse", "sparse_w8a8"),
    ],
)
def test_memory_of_quantized_checkpoints(name: str, tmp_path: Path) -> None:
    found, model = both(written(name, tmp_path / "model"))
    assert told(found) == pytest.approx(num_bytes(model), rel=PANELS)


@pytest.mark.parametrize("name", ["bitsandbytes_nf4", "hqq_4", "torchao_int4"])
def test_forms_that_no_method_tells_are_called_a_guess(name: str, tmp_path: Path) -> None:
    found = inspect(config_of(written(name, tmp_path / "model")))
    assert found.memory is not None
    assert not found.memory.is_exact
    assert any("is a guess for attention" in text for text in found.warnings)


@pytest.mark.parametrize("type_name", ["Q4_0", "Q8_0", "Q4_K", "Q6_K", "F16"])
def test_memory_of_gguf_files(type_name: str, tmp_path: Path) -> None:
    source = write_tiny_checkpoint(
        tmp_path / "source", "Qwen3ForCausalLM", hidden_size=256, intermediate_size=256,
        head_dim=64,
    )  # fmt: skip
    file = tmp_path / "model.gguf"
    write_gguf(source, file, lambda name: "F32" if "norm" in name else type_name)
    found, model = both(file)
    assert told(found) == pytest.approx(num_bytes(model), rel=PANELS)
    assert found.files[0].name == "model.gguf"


def test_mistrals_own_layout(tmp_path: Path) -> None:
    layout = runpy.run_path(str(Path(__file__).with_name("mistral") / "layout.py"))
    source = write_tiny_checkpoint(
        tmp_path / "source", "MistralForCausalLM", **ROOMY, sliding_window=None
    )
    plain = inspect(config_of(source))
    found, model = both(layout["write_mistral"](source, tmp_path / "model", num_files=2))
    assert told(found) == num_bytes(model)
    assert len(found.files) == 2
    assert {g.name: g.parameters for g in found.groups} == {
        g.name: g.parameters for g in plain.groups
    }


@pytest.mark.parametrize("flags", [(), ("--quantization", "int8"), ("--dtype", "bfloat16")])
def test_memory_of_a_model_that_transformers_runs(flags: tuple[str, ...], tmp_path: Path) -> None:
    sizes = {**ROOMY, "num_key_value_heads": 4}
    path = write_tiny_checkpoint(tmp_path, "GraniteForCausalLM", **sizes)
    found, model = both(path, *flags)
    assert told(found) == pytest.approx(num_bytes(model), rel=PANELS)
    reason = next(one.reason for one in found.plugins if one.kind == "model")
    assert "transformers knows it" in reason


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "Gemma2ForCausalLM"])
def test_the_cache_is_the_engines_own(architecture: str, tmp_path: Path) -> None:
    path = write_tiny_checkpoint(tmp_path, architecture)
    found, model = both(path)
    assert found.memory is not None
    layers = [m.kv_layer("") for m in model.modules() if isinstance(m, Attention)]
    assert found.memory.kv_bytes_per_token == sum(layer.bytes_per_token(4) for layer in layers)

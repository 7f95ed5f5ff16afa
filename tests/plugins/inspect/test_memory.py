"""`dovetail inspect` against the engine: its memory is that of the loaded model's own buffers.

What inspect knows from headers is compared with what loading makes of the same files.
"""

from __future__ import annotations

import io
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from dovetail.cli.parser import Parser
from dovetail.config.config import Config
from dovetail.config.parse.parse_config import parse_config
from dovetail.config.resolve import resolve
from dovetail.interfaces.quantization import QuantMethod
from dovetail.layers.attention import Attention
from dovetail.runner.load.loader import load_model, num_bytes
from dovetail_plugins.commands._serve_flags import add_serve_arguments
from dovetail_plugins.inspect.collect import inspect
from dovetail_plugins.inspect.facts import Inspected
from dovetail_testing.tiny.models import write_tiny_checkpoint, write_tiny_tokenizer
from support.mistral_layout import write_mistral

pytest.importorskip("dovetail_plugins")

from dovetail_plugins.quantization.hqq import Hqq

DATA = Path(__file__).resolve().parents[2] / "data"
ROTARY = 1e-3
"""What transformers' own rotary layers keep, in the model's bytes."""
ROOMY = {"hidden_size": 64, "intermediate_size": 128, "head_dim": 32}


def config_of(path: Path, *flags: str) -> Config:
    parser = Parser(prog="inspect", description="")
    add_serve_arguments(parser)
    return parse_config(parser.parse([str(path), *flags]), stream=io.StringIO())


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


def test_forms_that_no_method_tells_are_called_a_guess(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A method from outside may leave `kept` out."""
    monkeypatch.setattr(Hqq, "memory_estimate", QuantMethod.memory_estimate)
    shutil.copytree(DATA / "quantized" / "hqq_4", tmp_path / "model")
    found = inspect(config_of(write_tiny_tokenizer(tmp_path / "model")))
    assert found.memory is not None
    assert not found.memory.is_exact
    assert any("is a guess for attention" in text for text in found.warnings)


def test_mistrals_own_layout(tmp_path: Path) -> None:
    source = write_tiny_checkpoint(
        tmp_path / "source", "MistralForCausalLM", **ROOMY, sliding_window=None
    )
    plain = inspect(config_of(source))
    found, model = both(write_mistral(source, tmp_path / "model", num_files=2))
    assert told(found) == num_bytes(model)
    assert len(found.files) == 2
    assert {g.name: g.parameters for g in found.groups} == {
        g.name: g.parameters for g in plain.groups
    }


@pytest.mark.parametrize("flags", [(), ("--quantization", "int8"), ("--dtype", "bfloat16")])
def test_memory_of_a_model_that_transformers_runs(flags: tuple[str, ...], tmp_path: Path) -> None:
    sizes = {**ROOMY, "num_key_value_heads": 4}
    path = write_tiny_checkpoint(tmp_path, "Jais2ForCausalLM", **sizes)
    found, model = both(path, *flags)
    assert told(found) == pytest.approx(num_bytes(model), rel=ROTARY)
    reason = next(one.reason for one in found.plugins if one.kind == "model")
    assert "transformers knows it" in reason


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "Gemma2ForCausalLM"])
def test_the_cache_is_the_engines_own(architecture: str, tmp_path: Path) -> None:
    path = write_tiny_checkpoint(tmp_path, architecture)
    found, model = both(path)
    assert found.memory is not None
    layers = [m.kv_layer("") for m in model.modules() if isinstance(m, Attention)]
    assert found.memory.kv_bytes_per_token == sum(layer.bytes_per_token(4) for layer in layers)

"""int8 and int4 as a user meets them: options, layers left alone, experts, heads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from dovetail import LLM
from dovetail.config.config import Config
from dovetail.config.resolve import resolve
from dovetail.errors import ConfigError
from dovetail.interfaces.data.spec import RunSpec
from dovetail.runner.load.loader import load_model
from dovetail_kernels.gemm.weight import quantize_int4, quantize_int8, quantize_int8_groups
from dovetail_testing.tiny.families import VOCAB_SIZE
from dovetail_testing.tiny.models import write_tiny_checkpoint
from support.dequantized import dequantized_model, found_logprobs, wanted_logprobs

ROOT = Path(__file__).resolve().parents[3]
SIZES = {"hidden_size": 64, "intermediate_size": 96}
EXACT = 1e-4
"""Float activations: both sides sum the same float32 products."""
ROUTED_INT8 = 0.04
"""8-bit activations against float ones: the median error of a logprob in deviations of all logits.
A router may pick another expert at the edge, so the largest is not bounded; 0.020 was seen."""
FLOAT_INT4 = {"group": 32, "activations": "float", "head": "int4"}

Meant = Callable[[str, torch.Tensor], torch.Tensor]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("quantized") / "model"
    return write_tiny_checkpoint(folder, "LlamaForCausalLM", **SIZES)


def flags(path: Path, quantization: str, options: dict[str, Any]) -> dict[str, Any]:
    return {
        "model": str(path),
        "quantization": quantization,
        "plugin_options": {"quantization": options},
        "num_gpu_blocks_override": 64,
        "block_size": 16,
        "max_model_len": 64,
        "max_logprobs": -1,
        "use_tqdm_on_load": False,
    }


def resolved(path: Path, quantization: str, **options: Any) -> RunSpec:
    return resolve(Config.from_fields(flags(path, quantization, options))).run


def as_int8(name: str, weight: torch.Tensor) -> torch.Tensor:
    return weight if name.endswith(".gate") else quantize_int8(weight).dequantize()


def as_int4(name: str, weight: torch.Tensor) -> torch.Tensor:
    return weight if name.endswith(".gate") else quantize_int4(weight, 32).dequantize()


def differences(
    path: Path, quantization: str, options: dict[str, Any], meant: Meant
) -> torch.Tensor:
    """Return every logprob's distance from transformers', in deviations of its logits."""
    generator = torch.Generator().manual_seed(3)
    prompts = [
        torch.randint(3, VOCAB_SIZE, (n,), generator=generator).tolist() for n in (17, 1, 9, 30)
    ]
    reference = dequantized_model(path, meant)
    wanted, deviation = wanted_logprobs(reference, prompts)
    with LLM(**flags(path, quantization, options)) as llm:
        found = found_logprobs(llm, prompts)
    return (found - wanted).abs() / deviation


@pytest.mark.parametrize(
    ("quantization", "options", "message"),
    [
        (
            "int4-plain",
            {"group": 48},
            r"quantization\.group: 48 is not a valid choice\. Fix: use",
        ),
        (
            "int4",
            {"head": "foo"},
            r"quantization\.head: 'foo' is not a valid choice\. Fix:",
        ),
        (
            "int4",
            {"activations": "int16"},
            r"quantization\.activations: 'int16' is not a valid",
        ),
        (
            "int8",
            {"symmetric": False},
            r"quantization\.symmetric: there is no such option\. Fix: it has activations, group",
        ),
        ("int9", {}, r"--quantization"),
    ],
    ids=["group", "head", "activations", "foreign", "method"],
)
def test_wrong_options_are_refused(
    llama: Path, quantization: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        load_model(resolved(llama, quantization, **options), torch.device("cpu"))


def test_a_quantized_checkpoint_is_not_quantized_again(llama: Path) -> None:
    fields = flags(llama, "int8", {}) | {
        "hf_overrides": {"quantization_config": {"quant_method": "awq"}}
    }
    with pytest.raises(ConfigError, match='stored as "awq", not "int8"'):
        resolve(Config.from_fields(fields))


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_skipped_layers_stay_plain(llama: Path, quantization: str) -> None:
    run = resolved(llama, quantization, skip=["o_proj", "layers.1.mlp", "lm_head"])
    module = load_model(run, torch.device("cpu")).module
    held: dict[str, int] = {}
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        layer = name.rpartition(".")[0]
        held[layer] = held.get(layer, 0) + tensor.nbytes
    plain = {f"model.layers.{i}.self_attn.o_proj": 4 * 64 * 64 for i in range(2)} | {
        "model.layers.1.mlp.down_proj": 4 * 64 * 96
    }
    assert {name: held.get(name) for name in plain} == plain
    assert held["model.layers.0.mlp.down_proj"] <= 64 * 96 + 4 * 64


def test_the_answers_with_skipped_layers(llama: Path) -> None:
    skipped = ("o_proj", "layers.1.mlp")

    def meant(name: str, weight: torch.Tensor) -> torch.Tensor:
        return weight if any(part in name for part in skipped) else as_int4(name, weight)

    options = {**FLOAT_INT4, "skip": list(skipped)}
    assert differences(llama, "int4-plain", options, meant).max() <= EXACT


@pytest.mark.parametrize("is_tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("head", ["int4", "none"])
def test_heads(tmp_path: Path, head: str, is_tied: bool) -> None:
    """A tied table is quantized once, for the head and for what is looked up in it."""
    path = write_tiny_checkpoint(
        tmp_path / "model", "LlamaForCausalLM", tie_word_embeddings=is_tied, **SIZES
    )

    def meant(name: str, weight: torch.Tensor) -> torch.Tensor:
        return weight if name == "lm_head" and head == "none" else as_int4(name, weight)

    options = {**FLOAT_INT4, "head": head}
    assert differences(path, "int4-plain", options, meant).max() <= EXACT


@pytest.mark.parametrize("group", [0, 32])
@pytest.mark.parametrize("is_tied", [True, False], ids=["tied", "untied"])
def test_int8_in_groups(tmp_path: Path, is_tied: bool, group: int) -> None:
    path = write_tiny_checkpoint(
        tmp_path / "model", "LlamaForCausalLM", tie_word_embeddings=is_tied, **SIZES
    )

    def meant(_: str, weight: torch.Tensor) -> torch.Tensor:
        made = quantize_int8_groups(weight, group) if group else quantize_int8(weight)
        return made.dequantize()

    options = {"activations": "float", "group": group}
    assert differences(path, "int8", options, meant).max() <= EXACT


@pytest.fixture(scope="module")
def experts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("experts") / "model"
    sizes = {"hidden_size": 64, "moe_intermediate_size": 48, "mlp_only_layers": []}
    return write_tiny_checkpoint(folder, "Qwen3MoeForCausalLM", **sizes)


def test_experts_in_int4(experts: Path) -> None:
    """Every expert is quantized, the router is not."""
    assert differences(experts, "int4-plain", FLOAT_INT4, as_int4).max() <= EXACT


def test_experts_in_int8(experts: Path) -> None:
    assert differences(experts, "int8", {}, as_int8).median() <= ROUTED_INT8

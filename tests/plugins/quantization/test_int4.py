"""int4: which grid each layer gets, what a calibration text changes, and the answers."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from msgspec import structs

from dovetail import LLM
from dovetail.config.config import Config
from dovetail.config.resolve import resolve
from dovetail.errors import ConfigError
from dovetail.interfaces.data.spec import RankSpec, RunSpec
from dovetail.interfaces.quantization import LinearSpec
from dovetail.runner.load.loader import load_model
from dovetail_kernels.gemm.fitted import fitted
from dovetail_kernels.gemm.weight import quantize_int8_groups
from dovetail_plugins.packed_weights.key import key_of
from dovetail_plugins.quantization import _fitted
from dovetail_plugins.quantization._calibrated import InputSquares
from dovetail_plugins.quantization.int4 import Int4, Int4Options
from dovetail_testing.tiny.families import VOCAB_SIZE
from dovetail_testing.tiny.models import write_tiny_checkpoint, write_tiny_tokenizer
from support.dequantized import dequantized_model, found_logprobs, wanted_logprobs

SIZES = {"hidden_size": 64, "intermediate_size": 96}
EXACT = 1e-4
"""Float activations: both sides sum the same float32 products."""
TEXT = "Every part of a sentence that a reader needs comes early, and the rest follows. " * 40


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("int4") / "model"
    return write_tiny_tokenizer(write_tiny_checkpoint(folder, "LlamaForCausalLM", **SIZES))


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


def flags(path: Path, **options: Any) -> dict[str, Any]:
    return {
        "model": str(path),
        "quantization": "int4",
        "plugin_options": {"quantization": options},
        "num_gpu_blocks_override": 64,
        "block_size": 16,
        "max_model_len": 64,
        "max_logprobs": -1,
        "use_tqdm_on_load": False,
    }


def resolved(path: Path, **options: Any) -> RunSpec:
    return resolve(Config.from_fields(flags(path, **options))).run


def method(path: Path, **options: Any) -> Int4:
    return Int4(Int4Options(**options), resolved(path).model)


@pytest.mark.parametrize("bits", [0, 4])
@pytest.mark.parametrize(
    ("architecture", "sizes"),
    [
        ("LlamaForCausalLM", {}),
        ("Gemma3ForCausalLM", {}),
        ("Qwen3ForCausalLM", {"tie_word_embeddings": True}),
        ("Qwen3MoeForCausalLM", {"moe_intermediate_size": 32, "num_experts": 4}),
    ],
)
def test_answers_are_those_of_the_matrices_that_are_meant(
    architecture: str, sizes: dict[str, Any], bits: int, tmp_path: Path
) -> None:
    path = write_tiny_checkpoint(tmp_path / "model", architecture, **SIZES, **sizes)
    generator = torch.Generator().manual_seed(3)
    prompts = [
        torch.randint(3, VOCAB_SIZE, (n,), generator=generator).tolist() for n in (17, 1, 30)
    ]
    own = method(path, bits=bits)

    def meant(name: str, weight: torch.Tensor) -> torch.Tensor:
        grid = own._grid(name)
        if name.endswith(".gate"):
            return weight
        if grid.bits == 8:
            return quantize_int8_groups(weight, 128).dequantize()
        return fitted(weight, grid.bits, has_offsets=grid.has_offsets).dequantize()

    wanted, deviation = wanted_logprobs(dequantized_model(path, meant), prompts)
    with LLM(**flags(path, activations="float", bits=bits)) as llm:
        found = found_logprobs(llm, prompts)
    assert ((found - wanted).abs() / deviation).max() <= EXACT


@pytest.mark.parametrize(("head", "bits"), [("int4", 4), ("int6", 6), ("int8", 8)])
def test_the_head_has_the_bits_that_are_asked_for(head: str, bits: int, llama: Path) -> None:
    assert method(llama, head=head)._grid("lm_head").bits == bits


@pytest.mark.parametrize(("width", "bits"), [(640, 6), (896, 5), (1536, 4), (4096, 4)])
def test_narrow_models_get_more_bits(width: int, bits: int, llama: Path) -> None:
    model = structs.replace(resolved(llama).model, hidden_size=width)
    assert Int4(Int4Options(), model)._grid("model.layers.0.self_attn.q_proj").bits == bits
    assert Int4(Int4Options(bits=4), model)._grid("model.layers.0.mlp.up_proj").bits == 4


@pytest.mark.parametrize(("bits", "wider"), [(4, (6, 5)), (5, (8, 6)), (6, (8, 8))])
def test_values_and_outputs_of_attention_get_more_bits(
    bits: int, wider: tuple[int, int], llama: Path
) -> None:
    own = method(llama, bits=bits)
    name = "model.layers.1.self_attn.{}_proj"
    assert tuple(own._grid(name.format(leaf)).bits for leaf in "vo") == wider
    assert {own._grid(name.format(leaf)).bits for leaf in "qk"} == {bits}


def squares_used(run: RunSpec) -> list[torch.Tensor | None]:
    """What each matrix was fitted with while a model loaded."""
    found: list[torch.Tensor | None] = []
    own = _fitted._on_grid

    def spied(weight: torch.Tensor, grid: Any, squares: torch.Tensor | None) -> Any:
        found.append(squares)
        return own(weight, grid, squares)

    with patch.object(_fitted, "_on_grid", spied):
        load_model(run, torch.device("cpu"))
    return found


def test_a_text_tells_how_much_every_input_counts(llama: Path, text: Path) -> None:
    used = squares_used(resolved(llama, calibration=str(text)))
    known = [squares for squares in used if squares is not None]
    assert len(known) == len(used) - 1, "all but the head"
    assert all((squares > 0).any() and squares.isfinite().all() for squares in known)
    assert all(squares is None for squares in squares_used(resolved(llama)))


def test_ranks_take_their_inputs_of_a_layer_that_is_divided(llama: Path, text: Path) -> None:
    run = resolved(llama)
    spec = LinearSpec(name="model.layers.1.mlp.down_proj", in_size=96, out_sizes=(64,),
                      dtype="float32", device="cpu")  # fmt: skip
    whole = InputSquares(run, str(text), 512).of(spec)
    assert whole is not None
    parts = []
    for rank in range(2):
        ranks = structs.replace(run, rank=RankSpec(tensor_rank=rank, tensor_size=2))
        own = InputSquares(ranks, str(text), 512).of(replace(spec, in_size=48, full_in_size=96))
        assert own is not None
        parts.append(own)
    assert torch.equal(torch.cat(parts), whole)


def test_experts_share_what_is_known_of_their_inputs(text: Path, tmp_path: Path) -> None:
    path = write_tiny_checkpoint(
        tmp_path / "model", "Qwen3MoeForCausalLM", **SIZES, moe_intermediate_size=32, num_experts=4
    )
    used = squares_used(resolved(write_tiny_tokenizer(path), calibration=str(text)))
    assert sum(squares is None for squares in used) == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "missing.txt.*cannot be read"), (b"\xff\xfe\xfa" * 9, "cannot be read"),
     (b"short", "of text are too few")],
)  # fmt: skip
def test_a_text_that_is_no_use_is_refused(
    content: bytes | None, message: str, llama: Path, tmp_path: Path
) -> None:
    path = tmp_path / "missing.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=message) as caught:
        load_model(resolved(llama, calibration=str(path)), torch.device("cpu"))
    assert caught.value.where == "--plugin-options.quantization.calibration"


def test_packed_weights_of_another_text_are_not_taken(llama: Path, tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    keys = set()
    for number in range(2):
        path.write_text(TEXT, encoding="utf-8")
        os.utime(path, (number, number))
        keys.add(key_of(resolved(llama, calibration=str(path)), "library", "isa"))
    keys.add(key_of(resolved(llama), "library", "isa"))
    assert len(keys) == 3

"""What Ollama's API says of a model's weights, held against transformers' own count."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dovetail import registry
from dovetail.config.checkpoint.hf import load_model_facts
from dovetail_plugins.apis.ollama.weights import in_words, weights_of
from dovetail_testing.checkpoints import write_safetensors
from dovetail_testing.fakes.async_engine import FakeAsyncEngine, fake_spec
from dovetail_testing.tiny.models import tiny_config, write_tiny_checkpoint
from support.gguf_files import write_gguf
from support.serving import app_for, send

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
LLAMA = "LlamaForCausalLM"
PACKED = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def run_of(path: Path, load_format: str, quantization: str = "none") -> Any:
    run = fake_spec().run
    return msgspec.structs.replace(
        run,
        model=load_model_facts(path),
        load_format=registry.choose("load_format", load_format, where="here"),
        quantization=msgspec.structs.replace(run.quantization, name=quantization),
    )


def count_of(**overrides: Any) -> int:
    return transformers.AutoModelForCausalLM.from_config(
        tiny_config(LLAMA, **overrides)
    ).num_parameters()


@pytest.mark.parametrize("is_tied", [True, False])
def test_parameters_are_those_that_transformers_counts(tmp_path: Path, is_tied: bool) -> None:
    path = write_tiny_checkpoint(tmp_path, LLAMA, tie_word_embeddings=is_tied)
    found = weights_of(run_of(path, "safetensors"))
    assert found.parameter_size == in_words(count_of(tie_word_embeddings=is_tied))
    assert found.quantization_level == "F32"


@pytest.mark.parametrize(
    ("name", "level"), [("m-q8_0.gguf", "Q8_0"), ("tiny.gguf", "Q8_0"), ("m-Q4_K_M.gguf", "Q4_K_M")]
)
def test_a_gguf_file_has_the_level_of_its_name_or_its_blocks(
    tmp_path: Path, name: str, level: str
) -> None:
    pytest.importorskip("gguf")
    source = write_tiny_checkpoint(tmp_path / "hf", LLAMA, tie_word_embeddings=True)
    target = tmp_path / name
    write_gguf(source, target, lambda tensor: "F32" if "norm" in tensor else "Q8_0")
    found = weights_of(run_of(target, "gguf"))
    assert found.parameter_size == in_words(count_of(tie_word_embeddings=True))
    assert found.quantization_level == level


def test_packed_weights_are_counted_one_by_one(tmp_path: Path) -> None:
    path = write_tiny_checkpoint(tmp_path, LLAMA)
    model = transformers.AutoModelForCausalLM.from_pretrained(path)
    tensors: dict[str, Any] = {}
    for name, values in model.state_dict().items():
        layer = name.removesuffix(".weight")
        if layer.rpartition(".")[2] not in PACKED:
            tensors[name] = values
            continue
        outputs, inputs = values.shape
        tensors |= {
            f"{layer}.qweight": torch.zeros(inputs // 8, outputs, dtype=torch.int32),
            f"{layer}.qzeros": torch.zeros(1, outputs // 8, dtype=torch.int32),
            f"{layer}.scales": torch.zeros(1, outputs, dtype=torch.float16),
            f"{layer}.g_idx": torch.zeros(inputs, dtype=torch.int32),
        }
    for file in path.glob("*.safetensors"):
        file.unlink()
    write_safetensors(path, tensors)
    found = weights_of(run_of(path, "safetensors", "gptq"))
    assert found.parameter_size == in_words(model.num_parameters())
    assert found.quantization_level == "gptq"


def test_files_that_do_not_tell_leave_the_size_empty() -> None:
    app, _ = app_for(engine=FakeAsyncEngine(spec=fake_spec()))
    details = send(app, "POST", "/api/show", {"model": "fake"}).json()["details"]
    assert (details["parameter_size"], details["quantization_level"]) == ("", "fake")


def test_lists_and_facts_say_the_same(tmp_path: Path) -> None:
    path = write_tiny_checkpoint(tmp_path, LLAMA)
    spec = fake_spec(run=run_of(path, "safetensors"))
    app, _ = app_for(engine=FakeAsyncEngine(spec=spec))
    told = [
        send(app, "POST", "/api/show", {"model": "fake"}).json(),
        send(app, "GET", "/api/tags").json()["models"][0],
        send(app, "GET", "/api/ps").json()["models"][0],
    ]
    sizes = [one["details"]["parameter_size"] for one in told]
    assert sizes == [in_words(count_of())] * 3, json.dumps(told)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (7_615_616_512, "7.6B"),
        (494_032_768, "494.03M"),
        (8_000_000_000, "8B"),
        (1_500_000, "1.50M"),
        (12_345, "12K"),
        (999, "999"),
    ],
)
def test_numbers_are_written_as_ollama_writes_them(count: int, text: str) -> None:
    assert in_words(count) == text

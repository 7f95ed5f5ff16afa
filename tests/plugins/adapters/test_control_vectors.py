"""A control vector in a GGUF file adds its directions to what leaves the layers of transformers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dovetail import LLM
from dovetail.config.checkpoint.hf import load_model_facts
from dovetail.errors import ConfigError
from dovetail_plugins.adapters._control import LAST_MODULES
from dovetail_plugins.adapters.gguf import GgufAdapter
from dovetail_testing.tiny.families import VOCAB_SIZE
from dovetail_testing.tiny.models import write_tiny_checkpoint
from support.gguf_files import write_gguf
from support.inside import engine_of
from support.peft_adapters import asked, load, wanted

gguf = pytest.importorskip("gguf")

PROMPT = torch.randint(3, VOCAB_SIZE, (17,), generator=torch.Generator().manual_seed(3)).tolist()
NUM_TOKENS = 5
FLAGS: dict[str, Any] = {
    "dtype": "float32",
    "enable_lora": True,
    "enable_lora_bias": True,
    "max_logprobs": -1,
    "max_num_seqs": 4,
    "max_model_len": 64,
    "num_gpu_blocks_override": 64,
    "use_tqdm_on_load": False,
}
LAYERS = 3
DIRECTIONS = (1, 2)


def write_control(target: Path, vectors: Mapping[str, Any]) -> Path:
    """Write a file as llama.cpp's tools do."""
    writer = gguf.GGUFWriter(target, "controlvector")
    writer.add_string("controlvector.model_hint", "any")
    writer.add_uint32("controlvector.layer_count", len(vectors))
    for name, vector in vectors.items():
        writer.add_tensor(name, np.asarray(vector, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def vectors_of(size: int) -> dict[str, Any]:
    random = np.random.default_rng(7)
    return {f"direction.{n}": random.normal(size=size) for n in DIRECTIONS}


def steered(folder: Path, vectors: Mapping[str, Any]) -> Any:
    """Return transformers' model, with the directions added to its layers' outputs."""
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    layers = next(one for one in model.modules() if isinstance(one, torch.nn.ModuleList))
    for number in DIRECTIONS:
        vector = torch.tensor(vectors[f"direction.{number}"], dtype=torch.float32)

        def add(_: Any, __: Any, out: Any, vector: torch.Tensor = vector) -> Any:
            return (out[0] + vector, *out[1:]) if isinstance(out, tuple) else out + vector

        layers[number].register_forward_hook(add)
    return model


def checkpoint(folder: Path, architecture: str) -> Path:
    name = "n_layer" if architecture == "GPT2LMHeadModel" else "num_hidden_layers"
    return write_tiny_checkpoint(folder, architecture, **{name: LAYERS})


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("architecture", LAST_MODULES)
def test_as_if_it_were_added_to_the_layers(tmp_path: Path, architecture: str) -> None:
    folder = checkpoint(tmp_path / "base", architecture)
    vectors = vectors_of(load_model_facts(folder).hidden_size)
    file = write_control(tmp_path / "mood.gguf", vectors)
    theirs = wanted(steered(folder, vectors), PROMPT, NUM_TOKENS)
    with LLM(str(folder), **FLAGS) as llm:
        engine = engine_of(llm)
        load(engine, file)
        ours, plain = asked(engine, [(file.name, PROMPT), ("", PROMPT)], NUM_TOKENS)
    assert (ours.logprobs - theirs.logprobs).abs().max() <= 1e-4
    assert ours.token_ids == theirs.token_ids
    assert (plain.logprobs - theirs.logprobs).abs().max() > 0.01


@pytest.mark.parametrize("more", [{}, {"tensor_parallel_size": 2}])
def test_over_a_file_and_over_two_ranks(tmp_path: Path, more: dict[str, Any]) -> None:
    folder = checkpoint(tmp_path / "base", "Qwen3ForCausalLM")
    vectors = vectors_of(load_model_facts(folder).hidden_size)
    file = write_control(tmp_path / "mood.gguf", vectors)
    write_gguf(folder, tmp_path / "model.gguf")
    theirs = wanted(steered(folder, vectors), PROMPT, NUM_TOKENS)
    model = folder if more else tmp_path / "model.gguf"
    with LLM(str(model), **FLAGS, **more, lora_modules=[f"mood={file}"]) as llm:
        (ours,) = asked(engine_of(llm), [("mood", PROMPT)], NUM_TOKENS)
    assert (ours.logprobs - theirs.logprobs).abs().max() <= 1e-4
    assert ours.token_ids == theirs.token_ids


def test_without_the_flag_for_biases_it_says_which(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "base", "Qwen3ForCausalLM")
    vectors = vectors_of(load_model_facts(folder).hidden_size)
    file = write_control(tmp_path / "mood.gguf", vectors)
    flags = {**FLAGS, "enable_lora_bias": False}
    with pytest.raises(ConfigError, match="the adapter has a bias"):
        LLM(str(folder), **flags, lora_modules=[f"mood={file}"])


@pytest.mark.parametrize(
    ("vectors", "words"),
    [
        ({}, "no directions"),
        ({"direction.0": np.ones(64)}, "direction.1 to direction.2"),
        ({"direction.3": np.ones(64)}, "direction.1 to direction.2"),
        ({"other": np.ones(64)}, "direction.1 to direction.2"),
        ({"direction.1": np.ones(63)}, "has the shape"),
    ],
)
def test_vectors_of_another_model(tmp_path: Path, vectors: dict[str, Any], words: str) -> None:
    folder = checkpoint(tmp_path / "base", "Qwen3ForCausalLM")
    file = write_control(tmp_path / "mood.gguf", vectors)
    with pytest.raises(ConfigError, match=words):
        GgufAdapter(None, load_model_facts(folder)).read(file, {})


def test_a_family_without_such_a_module(tmp_path: Path) -> None:
    folder = write_tiny_checkpoint(tmp_path / "base", "Gemma2ForCausalLM")
    file = write_control(tmp_path / "mood.gguf", {"direction.1": np.ones(64)})
    with pytest.raises(ConfigError, match="not applied to Gemma2ForCausalLM"):
        GgufAdapter(None, load_model_facts(folder)).read(file, {})

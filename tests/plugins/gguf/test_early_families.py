"""GGUF files of early families: what is served is the checkpoint.

Files are written with the gguf package's names, plain and quantized.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from dovetail_plugins.gguf._config import read_config
from dovetail_testing.tiny.models import write_tiny_checkpoint
from support.gguf_early import CASES, write_checkpoint
from support.gguf_files import TypeOf, write_gguf
from support.gguf_models import loaded, logits_of, prompt, reference, transformers_model

pytest.importorskip("gguf")


def written(
    name: str, folder: Path, file: Path, type_of: TypeOf = lambda name: "F32"
) -> dict[str, Any]:
    """Write a case's file; return what its weights mean."""
    case, config = CASES[name], json.loads((folder / "config.json").read_text())
    adders = {k: made(config) if callable(made) else made for k, made in case.adders.items()}
    return write_gguf(
        folder,
        file,
        type_of,
        extra=case.extra,
        architecture=case.architecture,
        adders=adders,
    )


@pytest.mark.parametrize("name", CASES)
def test_it_is_the_checkpoint(name: str, tmp_path: Path) -> None:
    folder = write_checkpoint(CASES[name], tmp_path / "hf")
    file, tokens = tmp_path / "model.gguf", prompt(40)
    written(name, folder, file)
    (got,) = loaded(file).forward([(0, tokens)])
    right = logits_of(transformers_model(folder), tokens)
    torch.testing.assert_close(got, right, rtol=1e-5, atol=1e-4)


PLAIN = [name for name in CASES if not CASES[name].extra]
"""Cases without rotary factors, whose number follows from the size of heads."""


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("name", PLAIN)
def test_its_matrices_may_be_quantized(name: str, tmp_path: Path) -> None:
    folder = write_checkpoint(CASES[name], tmp_path / "hf", is_wide=True)
    file, tokens = tmp_path / "model.gguf", prompt(24)
    given: list[str] = []

    def type_of(tensor: str) -> str:
        given.append(tensor)
        return ("Q4_K", "Q8_0", "Q6_K")[len(given) % 3]

    meant = written(name, folder, file, type_of)
    right = reference(folder, meant, tokens, tmp_path / "meant")
    config = read_config(file)
    assert config is not None
    types = {"Q4_K", "Q8_0", "Q6_K"} & set(config["quantization_config"]["types"].values())
    assert len(types) > 1
    (got,) = loaded(file).forward([(0, tokens)])
    assert (got - right).abs().max() <= 1e-3 * (right.max() - right.min())


def as_baichuan(source: Path, target: Path, **fields: Any) -> Path:
    """Write a checkpoint of Llama with Baichuan's config and names: q, k and v are one matrix."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.safetensors"))
    config = json.loads((source / "config.json").read_text())
    config |= {"model_type": "baichuan", "architectures": ["BaichuanForCausalLM"], **fields}
    config = {key: value for key, value in config.items() if value is not None}
    (target / "config.json").write_text(json.dumps(config))
    weights = load_file(source / "model.safetensors")
    for layer in range(config["num_hidden_layers"]):
        block = f"model.layers.{layer}.self_attn"
        parts = [weights.pop(f"{block}.{part}_proj.weight") for part in "qkv"]
        weights[f"{block}.W_pack.weight"] = torch.cat(parts)
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    return target


BIASED: dict[str, dict[str, Any]] = {
    "baichuan": {"num_hidden_layers": 40, "num_key_value_heads": 4},
    "refact": {"num_key_value_heads": 1},
}
"""Architectures with ALiBi; transformers has neither."""


@pytest.mark.parametrize("architecture", BIASED)
def test_slopes_take_the_place_of_rotation(architecture: str, tmp_path: Path) -> None:
    """As in Baichuan's checkpoint in safetensors, which other tests compare with its formula."""
    folder = write_tiny_checkpoint(tmp_path / "hf", "LlamaForCausalLM", **BIASED[architecture])
    without = {"max_position_embeddings": None, "model_max_length": 128}
    same = as_baichuan(folder, tmp_path / "same", **without)
    file, tokens = tmp_path / "model.gguf", prompt(30)
    write_gguf(folder, file, architecture=architecture)
    (got,) = loaded(file).forward([(0, tokens)])
    (right,) = loaded(same).forward([(0, tokens)])
    torch.testing.assert_close(got, right, rtol=1e-5, atol=1e-4)
    rotated = logits_of(transformers_model(folder), tokens)
    assert (right - rotated).abs().max() > 0.1


def test_rows_of_baichuan_2s_head_are_divided_though_they_are_quantized(tmp_path: Path) -> None:
    sizes = {"vocab_size": 125696, "hidden_size": 256, "intermediate_size": 256,
             "num_hidden_layers": 1, "num_key_value_heads": 4}  # fmt: skip
    folder = write_tiny_checkpoint(tmp_path / "hf", "LlamaForCausalLM", **sizes)
    file, tokens = tmp_path / "model.gguf", prompt(12)
    meant = write_gguf(folder, file, lambda name: "Q8_0", architecture="baichuan")
    meant["lm_head.weight"] = normed(meant["lm_head.weight"])
    right = reference(folder, meant, tokens, tmp_path / "meant")
    (got,) = loaded(file).forward([(0, tokens)])
    assert (got - right).abs().max() <= 1e-3 * (right.max() - right.min())


def normed(rows: Any) -> Any:
    """Return rows divided by their lengths."""
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)

"""Nomic BERT with experts: vectors are those of its published code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from dovetail import LLM
from dovetail.errors import ConfigError
from dovetail.interfaces.data.pooling_params import PoolingParams
from dovetail_testing.tiny.families import VOCAB_SIZE
from support.nomic_moe import CONFIG, states, write_nomic_gguf, write_nomic_moe

FLAGS: dict[str, Any] = {"dtype": "float32", "max_num_batched_tokens": 128, "max_num_seqs": 8}
FLOAT = {"plugin_options": {"quantization": {"activations": "float"}}}
LENGTHS = (1, 5, 40, 23, 2)


def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(7)
    return [torch.randint(3, VOCAB_SIZE, (n,), generator=generator).tolist() for n in LENGTHS]


def vectors(folder: Path, task: str, **flags: Any) -> list[torch.Tensor]:
    params = PoolingParams(task=task, is_normalized=False, is_activated=False)
    with LLM(str(folder), **FLAGS, **flags) as llm:
        found = llm.encode(prompts(), params, use_tqdm=False)
    return [torch.tensor(one.data) for one in found]


@pytest.mark.parametrize("flags", [{}, {"tensor_parallel_size": 2}])
@pytest.mark.parametrize("every", [2, 3])
def test_vectors_are_those_of_its_code(tmp_path: Path, every: int, flags: dict[str, Any]) -> None:
    config = {**CONFIG, "moe_every_n_layers": every}
    tensors = write_nomic_moe(tmp_path, VOCAB_SIZE, moe_every_n_layers=every)
    wanted = [states(tensors, config, one) for one in prompts()]
    for ours, theirs in zip(vectors(tmp_path, "token_embed", **flags), wanted, strict=True):
        assert theirs.std() > 0.05
        assert (ours - theirs).abs().max() <= 1e-4


@pytest.mark.parametrize("type_name", ["F32", "Q8_0"])
def test_a_gguf_file_lacks_one_bias_and_says_so(
    tmp_path: Path, type_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    sizes = {"n_embd": 64, "n_inner": 96, "n_head": 4}
    config = {**CONFIG, **sizes}
    tensors = write_nomic_moe(tmp_path / "base", VOCAB_SIZE, **sizes)
    file = tmp_path / "model.gguf"
    meant = write_nomic_gguf(tensors, config, file, type_name)
    wanted = [states(meant, config, one).mean(0) for one in prompts()]
    flags = {} if type_name == "F32" else FLOAT
    for ours, theirs in zip(vectors(file, "embed", **flags), wanted, strict=True):
        assert theirs.std() > 0.05
        assert (ours - theirs).abs().max() <= (1e-4 if type_name == "F32" else 1e-3)
    assert "lacks the bias after the experts" in caplog.text


def test_experts_change_the_answer(tmp_path: Path) -> None:
    tensors = write_nomic_moe(tmp_path, VOCAB_SIZE)
    del tensors["encoder.layers.1.mlp.experts.bias"]
    wanted = [states(tensors, CONFIG, one) for one in prompts()]
    found = vectors(tmp_path, "token_embed")
    assert max((a - b).abs().max() for a, b in zip(found, wanted, strict=True)) > 0.01


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"num_shared_experts": 1}, "shared experts"),
        ({"expert_choice_router": True}, "experts that choose their tokens"),
        ({"moe_normalize_expert_weights": True}, "that are normalized"),
        ({"activation_function": "swiglu"}, "gated experts"),
    ],
)
def test_mixtures_of_other_kinds_are_refused(
    tmp_path: Path, setting: dict[str, Any], words: str
) -> None:
    write_nomic_moe(tmp_path, VOCAB_SIZE, **setting)
    with pytest.raises(ConfigError, match=words):
        LLM(str(tmp_path), **FLAGS)

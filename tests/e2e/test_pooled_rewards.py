"""Rewards and rerankers: the published layouts that transformers has no class for, and classes that
are tokens of the vocabulary."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from dovetail import LLM
from dovetail.errors import ConfigError
from dovetail.interfaces.data.pooling_params import PoolingParams
from support.tiny_decoders import SIZE, add_tensors, as_internlm2, hidden_states, saved, tiny_model

pytestmark = pytest.mark.e2e

FLAGS: dict[str, Any] = {
    "max_model_len": 64,
    "max_num_batched_tokens": 24,
    "num_gpu_blocks_override": 28,
    "block_size": 8,
    "dtype": "float32",
    "use_tqdm_on_load": False,
}
MARK = 9
"""The token that ends steps."""
PROMPTS = [[5, MARK, 17, 33, 8, 250, MARK], [40, 41, 42, MARK], [*range(20, 60), MARK, 70]]


def assert_told(llm: LLM, task: str, wanted: Sequence[torch.Tensor]) -> None:
    results = llm.encode(PROMPTS, PoolingParams(task=task), use_tqdm=False)
    for result, one in zip(results, wanted, strict=True):
        assert result.error is None, result.error
        np.testing.assert_allclose(result.data, one.numpy(), rtol=0, atol=1e-4)


def marks(ids: Sequence[int]) -> list[int]:
    return [place for place, token in enumerate(ids) if token == MARK]


def add_step_token(folder: Path) -> None:
    """Call MARK what process reward models call the end of a step. Mutates: the tokenizer"""
    file = folder / "tokenizer.json"
    content = json.loads(file.read_text())
    vocab = content["model"]["vocab"]
    vocab["<extra_0>"] = vocab.pop(next(word for word, number in vocab.items() if number == MARK))
    token = {"id": MARK, "content": "<extra_0>", "special": True, "normalized": False}
    sides = {"single_word": False, "lstrip": False, "rstrip": False}
    content["added_tokens"].append({**token, **sides})
    file.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("name", "count"), [("Qwen2ForRewardModel", 1), ("Qwen2ForProcessRewardModel", 2)]
)
def test_reward_models_of_qwen2(name: str, count: int, tmp_path: Path) -> None:
    """A reward of each token; or how good each step is, told where it ends."""
    trunk = tiny_model("Qwen2Model", "Qwen2ForCausalLM", tie_word_embeddings=False)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        score = nn.Sequential(nn.Linear(SIZE, SIZE), nn.ReLU(), nn.Linear(SIZE, count))
    folder = saved(trunk, tmp_path, architectures=[name])
    add_tensors(folder, {f"score.{key}": value for key, value in score.state_dict().items()})
    is_process = count == 2
    if is_process:
        add_step_token(folder)
    with torch.inference_mode():
        wanted = [score(hidden_states(trunk, ids)) for ids in PROMPTS]
        if is_process:
            wanted = [
                rewards.softmax(-1)[marks(ids)]
                for ids, rewards in zip(PROMPTS, wanted, strict=True)
            ]
    with LLM(model=str(folder), **FLAGS) as llm:
        assert_told(llm, "token_classify", wanted)


def test_reward_model_of_internlm2(tmp_path: Path) -> None:
    """A reward of each token by one matrix, of which the last one's is the text's."""
    trunk = tiny_model("LlamaModel", "LlamaForCausalLM", attention_bias=True)
    head = torch.randn(1, SIZE, generator=torch.Generator().manual_seed(5))
    folder = as_internlm2(saved(trunk, tmp_path), "InternLM2ForRewardModel", reward_token_id=MARK)
    tensors = load_file(folder / "model.safetensors")
    named = {f"model.{name}": x for name, x in tensors.items()}
    metadata = {"format": "pt"}
    save_file({**named, "v_head.weight": head}, folder / "model.safetensors", metadata=metadata)
    with torch.inference_mode():
        wanted = [hidden_states(trunk, ids) @ head.T for ids in PROMPTS]
    with LLM(model=str(folder), **FLAGS) as llm:
        assert_told(llm, "token_classify", wanted)


def test_some_of_the_classes(tmp_path: Path) -> None:
    """Those that are asked for alone are told, as if there were no others."""
    model = tiny_model("LlamaForTokenClassification", "LlamaForCausalLM", num_labels=4)
    folder = saved(model, tmp_path)
    with torch.inference_mode():
        logits = [model(input_ids=torch.tensor([ids])).logits[0] for ids in PROMPTS]
    wanted = [
        one[marks(ids)][:, [3, 1]].softmax(-1) for ids, one in zip(PROMPTS, logits, strict=True)
    ]
    asked = {"pooling_type": "STEP", "step_tag_id": MARK, "returned_token_ids": [3, 1]}
    with LLM(model=str(folder), pooler_config=asked, **FLAGS) as llm:
        assert_told(llm, "token_classify", wanted)


def test_a_process_reward_model_that_answers_in_words(tmp_path: Path) -> None:
    """Math-Shepherd: the two tokens for good and bad steps, of a model that generates."""
    model = tiny_model("MistralForCausalLM", "MistralForCausalLM", sliding_window=None)
    folder = saved(model, tmp_path)
    config = {"pooling_type": "STEP", "step_tag_id": MARK, "returned_token_ids": [48, 49]}
    with torch.inference_mode():
        logits = [model(input_ids=torch.tensor([ids])).logits[0] for ids in PROMPTS]
    wanted = [
        one[marks(ids)][:, [48, 49]].softmax(-1) for ids, one in zip(PROMPTS, logits, strict=True)
    ]
    asked = {**config, "softmax": True}
    with LLM(model=str(folder), task="reward", override_pooler_config=asked, **FLAGS) as llm:
        assert_told(llm, "token_classify", wanted)


@pytest.mark.parametrize("is_tied", [True, False], ids=["tied", "own head"])
def test_qwen3_reranker_as_published(is_tied: bool, tmp_path: Path) -> None:
    """How much more likely "yes" is than "no", through --hf-overrides alone."""
    model = tiny_model("Qwen3ForCausalLM", "Qwen3ForCausalLM", tie_word_embeddings=is_tied)
    folder = saved(model, tmp_path)
    vocab = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    words = ["n", "y"]
    overrides = {
        "architectures": ["Qwen3ForSequenceClassification"],
        "classifier_from_token": words,
        "is_original_qwen3_reranker": True,
    }
    with torch.inference_mode():
        logits = [model(input_ids=torch.tensor([ids])).logits[0, -1] for ids in PROMPTS]
    wanted = [one[[vocab[word] for word in words]].softmax(-1)[1:] for one in logits]
    with LLM(model=str(folder), hf_overrides=overrides, **FLAGS) as llm:
        assert_told(llm, "classify", wanted)
    unknown = {**overrides, "classifier_from_token": ["n", "there is no such token"]}
    with pytest.raises(ConfigError, match="the tokenizer has no token 'there is no such token'"):
        LLM(model=str(folder), hf_overrides=unknown, **FLAGS)


def test_rows_of_the_head_as_classes(tmp_path: Path) -> None:
    """A reranker whose one class is the logit of a token."""
    model = tiny_model("GemmaForCausalLM", "GemmaForCausalLM")
    folder = saved(model, tmp_path)
    vocab = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    overrides = {
        "architectures": ["GemmaForSequenceClassification"],
        "classifier_from_token": ["y"],
        "method": "no_post_processing",
    }
    with torch.inference_mode():
        logits = [model(input_ids=torch.tensor([ids])).logits[0, -1] for ids in PROMPTS]
    with LLM(model=str(folder), hf_overrides=overrides, **FLAGS) as llm:
        assert_told(llm, "classify", [one[[vocab["y"]]].sigmoid() for one in logits])


@pytest.mark.parametrize("convert", ["classify", "reward"])
def test_what_tells_no_classes_apart_is_refused(convert: str, tmp_path: Path) -> None:
    folder = saved(tiny_model("LlamaForCausalLM", "LlamaForCausalLM"), tmp_path)
    with pytest.raises(ConfigError, match=r"1 missing: score\.weight") as caught:
        LLM(model=str(folder), convert=convert, **FLAGS)
    assert "nothing that tells classes apart" in str(caught.value)


@pytest.mark.parametrize(
    ("told", "activate"),
    [
        ({"sentence_transformers": {"activation_fn": "torch.nn.Identity"}}, lambda x: x),
        (
            {"sbert_ce_default_activation_function": "torch.nn.modules.activation.Sigmoid"},
            torch.sigmoid,
        ),
    ],
    ids=["new", "old"],
)
def test_cross_encoders_activate_as_they_were_saved(
    told: dict[str, Any], activate: Any, tmp_path: Path
) -> None:
    model = tiny_model("LlamaForSequenceClassification", "LlamaForCausalLM", num_labels=3)
    folder = saved(model, tmp_path, **told)
    with torch.inference_mode():
        wanted = [activate(model(input_ids=torch.tensor([ids])).logits[0]) for ids in PROMPTS]
    with LLM(model=str(folder), **FLAGS) as llm:
        assert_told(llm, "classify", wanted)


def test_a_llama_that_sees_both_sides_as_a_reranker(tmp_path: Path) -> None:
    """The mean of all tokens, one number, divided by a temperature: as llama-nemotron-rerank."""
    model = tiny_model("LlamaForSequenceClassification", "LlamaForCausalLM", num_labels=1)
    folder = saved(
        model,
        tmp_path,
        model_type="llama_bidirec",
        architectures=["LlamaBidirectionalForSequenceClassification"],
        temperature=0.25,
    )
    with torch.inference_mode():
        states = [hidden_states(model.model, ids, sees_all=True).mean(dim=0) for ids in PROMPTS]
        wanted = [(model.score(one) / 0.25).sigmoid() for one in states]
    with LLM(model=str(folder), **{**FLAGS, "max_num_batched_tokens": 64}) as llm:
        assert_told(llm, "classify", wanted)

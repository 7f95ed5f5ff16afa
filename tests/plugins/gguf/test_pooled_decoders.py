"""GGUF files of decoders that make vectors, or rank: the file alone says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dovetail import LLM
from dovetail.config.config import Config
from dovetail.config.resolve import resolve
from dovetail.errors import ConfigError
from dovetail.interfaces.data.pooling_params import PoolingParams
from support.gguf_encoders import VOCAB_SIZE, Arrays, Case, made, write

pytest.importorskip("gguf")

FLAGS = {"dtype": "float32", "max_num_batched_tokens": 128, "max_num_seqs": 8}
LENGTHS = (1, 5, 40, 23, 2)
POOLED = {"mean": lambda x: x.mean(0), "cls": lambda x: x[0], "last": lambda x: x[-1]}


def _whole(weights: Arrays) -> Arrays:
    """Name the weights as those of the model that generates."""
    return {n if n.startswith("lm_head") else f"model.{n}": w for n, w in weights.items()}


def _turned(weights: Arrays) -> Arrays:
    """Put the rows of queries and keys in llama.cpp's order."""
    found = _whole(weights)
    for name, values in found.items():
        heads = {"q_proj": 4, "k_proj": 2}.get(name.split(".")[-2])
        if heads is not None:
            rest = values.shape[1:]
            turned = values.reshape(heads, 2, -1, *rest).swapaxes(1, 2).reshape(values.shape)
            found[name] = turned
    return found


def _plus_one(weights: Arrays) -> Arrays:
    return {n: w + 1 if "norm" in n else w for n, w in _whole(weights).items()}


DECODER = {"num_key_value_heads": 2, "head_dim": 16, "pad_token_id": 0}
RMS = {
    "attention.head_count_kv": 2,
    "attention.key_length": 16,
    "attention.layer_norm_rms_epsilon": 1e-6,
    "rope.freq_base": 10000.0,
}
QWEN3 = Case(
    architecture="qwen3",
    name="Qwen3Model",
    model_type="qwen3",
    fields={**DECODER, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
    settings={**RMS, "attention.causal": None},
    changed=_whole,
    pooling="last",
)
GEMMA = Case(
    architecture="gemma-embedding",
    name="Gemma3TextModel",
    model_type="gemma3_text",
    fields={
        **DECODER,
        "use_bidirectional_attention": True,
        "sliding_window": 8,
        "query_pre_attn_scalar": 16,
        "num_hidden_layers": 6,
        "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
    },
    settings={**RMS, "attention.sliding_window": 8, "rope.freq_base": 1e6},
    changed=_plus_one,
)
CASES = {
    "qwen3": QWEN3,
    "gemma-embedding": GEMMA,
    "llama-embed": Case(
        architecture="llama-embed",
        name="LlamaModel",
        model_type="llama",
        fields={**DECODER, "is_causal": False},
        settings=RMS,
        changed=_turned,
    ),
    "eurobert": Case(
        architecture="eurobert",
        name="EuroBertModel",
        model_type="eurobert",
        fields={
            **DECODER,
            "rope_parameters": {"rope_type": "default", "rope_theta": 250000.0},
        },
        settings={**RMS, "attention.layer_norm_rms_epsilon": 1e-5, "rope.freq_base": 250000.0},
        changed=_whole,
    ),
}


def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(7)
    return [torch.randint(6, VOCAB_SIZE, (n,), generator=generator).tolist() for n in LENGTHS]


def answers(file: Path, **flags: Any) -> list[torch.Tensor]:
    params = PoolingParams(is_normalized=False, is_activated=False)
    with LLM(str(file), **FLAGS, **flags) as llm:
        return [torch.tensor(one.data) for one in llm.encode(prompts(), params, use_tqdm=False)]


def vectors_of(model: Any, pooling: str) -> list[torch.Tensor]:
    """Return what transformers pools; without a mask if the model is told to see all."""
    if model.config.model_type == "llama":
        for layer in model.layers:
            layer.self_attn.is_causal = False
    with torch.inference_mode():
        states = []
        for one in prompts():
            mask = torch.zeros(1, 1, len(one), len(one))
            more = {"attention_mask": mask} if model.config.model_type == "llama" else {}
            states.append(model(torch.tensor([one]), **more).last_hidden_state[0])
    return [POOLED[pooling](one) for one in states]


@pytest.mark.parametrize("name", CASES)
def test_vectors_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    case, file = CASES[name], tmp_path / "model.gguf"
    model = made(case)
    write(case, model, file)
    for ours, theirs in zip(answers(file), vectors_of(model, case.pooling), strict=True):
        assert theirs.std() > 0.05
        torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-4)


def test_layers_behind_the_pooler(tmp_path: Path) -> None:
    """EmbeddingGemma's two, of which one may be quantized."""
    model, file = made(GEMMA), tmp_path / "model.gguf"
    random = np.random.default_rng(0)
    wide = random.normal(size=(96, 64)).astype(np.float32) / 8
    back = random.normal(size=(64, 96)).astype(np.float32) / 8
    extra = {"dense_2.weight": wide, "dense_3.weight": back}
    write(GEMMA, model, file, extra=extra)
    for ours, theirs in zip(answers(file), vectors_of(model, "mean"), strict=True):
        wanted = torch.from_numpy(back @ (wide @ theirs.numpy()))
        torch.testing.assert_close(ours, wanted, rtol=0, atol=2e-4)


def test_a_quantized_table_without_a_head(tmp_path: Path) -> None:
    model, file = made(QWEN3, hidden_size=256, intermediate_size=256), tmp_path / "model.gguf"
    meant = write(QWEN3, model, file, type_name="Q8_0")
    own = {n.removeprefix("model."): torch.from_numpy(v) for n, v in meant.items()}
    model.load_state_dict(own)
    float_alone = {"plugin_options": {"quantization": {"activations": "float"}}}
    for ours, theirs in zip(answers(file, **float_alone), vectors_of(model, "last"), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-3)


TEMPLATE = "judge: <q> {query} <d> {document} answer:"


def reranker(tmp_path: Path) -> tuple[Path, Any]:
    """Write a decoder whose two rows of a head are "yes" and "no"; return it and its logits."""
    import dataclasses

    import transformers

    case = dataclasses.replace(
        QWEN3,
        name="Qwen3ForCausalLM",
        pooling="rank",
        changed=lambda w: {
            n if n.startswith("model.") else f"model.{n}": v
            for n, v in w.items()
            if "lm_head" not in n
        },
    )
    model, file = made(case), tmp_path / "model.gguf"
    assert isinstance(model, transformers.Qwen3ForCausalLM)
    head = model.lm_head.weight.detach().numpy()
    write(
        case,
        model,
        file,
        extra={"cls.output.weight": np.stack([head[40], head[41]])},
        more={
            "classifier.output_labels": ["yes", "no"],
            "tokenizer.chat_template.rerank": TEMPLATE,
        },
    )
    return file, model


def test_a_reranker_scores_by_the_odds_of_yes(tmp_path: Path) -> None:
    file, model = reranker(tmp_path)
    with LLM(str(file), **FLAGS) as llm:
        (found,) = llm.score(["the dog"], ["a cat sees the house"])
        text = TEMPLATE.format(query="the dog", document="a cat sees the house")
        ids = llm.tokenizer.encode(text)
    with torch.inference_mode():
        logits = model(torch.tensor([ids])).logits[0, -1, [40, 41]]
    assert abs(found.outputs.score - logits.softmax(-1)[0].item()) < 1e-5


def test_a_reranker_without_classes_is_refused(tmp_path: Path) -> None:
    import dataclasses

    file = tmp_path / "model.gguf"
    write(dataclasses.replace(QWEN3, pooling="rank"), made(QWEN3), file)
    with pytest.raises(ConfigError, match=r"qwen3\.pooling_type.*cls\.output\.weight"):
        resolve(Config.from_fields({"model": str(file)}))

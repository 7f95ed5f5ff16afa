"""GGUF files of encoders: their vectors and classes are those of transformers, and the file alone
says what the model is for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from dovetail import LLM
from dovetail.config.config import Config
from dovetail.config.resolve import resolve
from dovetail.errors import ConfigError
from dovetail.interfaces.data.pooling_params import PoolingParams
from support.gguf_encoders import VOCAB_SIZE, Arrays, Case, made, write

pytest.importorskip("gguf")

FLAGS = {"dtype": "float32", "max_num_batched_tokens": 128, "max_num_seqs": 8}
LENGTHS = (1, 5, 40, 23, 2)


def _cut_positions(weights: Arrays) -> Arrays:
    """Leave out the rows of positions that no token has."""
    name = "embeddings.position_embeddings.weight"
    return weights | {name: weights[name][2:]}


def _joined(weights: Arrays) -> Arrays:
    """Make one matrix of queries, keys and values, as the first code of these models has it."""
    found: Arrays = {}
    for name, values in weights.items():
        if ".self_attn.q_proj." in name:
            parts = [weights[name.replace("q_proj", f"{part}_proj")] for part in "qkv"]
            name, values = name.replace("self_attn.q_proj", "mixer.Wqkv"), np.concatenate(parts)
        elif ".k_proj." in name or ".v_proj." in name:
            continue
        found[_first_names(name)] = values
    return found


def _first_names(name: str) -> str:
    for old, new in (
        ("self_attn.o_proj", "mixer.out_proj"),
        ("post_attention_layernorm", "norm1"),
        ("post_mlp_layernorm", "norm2"),
        ("mlp.up_proj", "mlp.fc11"),
        ("mlp.gate_proj", "mlp.fc12"),
        ("mlp.down_proj", "mlp.fc2"),
    ):
        name = name.replace(old, new)
    return f"encoder.{name}" if name.startswith("layers.") else name


ROBERTA = {"pad_token_id": 1, "type_vocab_size": 1}
MODERN: dict[str, Any] = {
    "num_hidden_layers": 4,
    "local_attention": 6,
    "global_attn_every_n_layers": 3,
    "classifier_pooling": "mean",
}
CASES = {
    "bert": Case(architecture="bert", name="BertModel", model_type="bert"),
    "bert-first-token": Case(
        architecture="bert", name="BertModel", model_type="bert", pooling="cls"
    ),
    "roberta": Case(
        architecture="bert",
        name="RobertaModel",
        model_type="roberta",
        fields=ROBERTA,
        changed=_cut_positions,
    ),
    "distilbert": Case(
        architecture="bert",
        name="DistilBertModel",
        model_type="distilbert",
        fields={"dim": 64, "hidden_dim": 96, "n_layers": 2, "n_heads": 4},
        settings={"feed_forward_length": 96},
    ),
    "nomic-bert": Case(
        architecture="nomic-bert",
        name="NomicBertModel",
        model_type="nomic_bert",
        settings={"rope.freq_base": 1000.0},
        changed=_joined,
    ),
    "jina-bert-v3": Case(
        architecture="jina-bert-v3",
        name="JinaEmbeddingsV3Model",
        model_type="jina_embeddings_v3",
        settings={"rope.freq_base": 20000.0},
        changed=_joined,
    ),
    "modern-bert": Case(
        architecture="modern-bert",
        name="ModernBertModel",
        model_type="modernbert",
        fields=MODERN,
        settings={
            "attention.layer_norm_epsilon": 1e-5,
            "attention.sliding_window": 6,
            "attention.sliding_window_pattern": 3,
            "rope.freq_base": 160000.0,
            "rope.freq_base_swa": 10000.0,
        },
    ),
}
POOLED = {"mean": lambda x: x.mean(0), "cls": lambda x: x[0], "last": lambda x: x[-1]}


def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(7)
    return [torch.randint(6, VOCAB_SIZE, (n,), generator=generator).tolist() for n in LENGTHS]


def answers(file: Path, task: str, **flags: Any) -> list[torch.Tensor]:
    """Return the numbers of the prompts of one batch, without a norm or an activation."""
    params = PoolingParams(task=task, is_normalized=False, is_activated=False)
    with LLM(str(file), **FLAGS, **flags) as llm:
        results = llm.encode(prompts(), params, use_tqdm=False)
    return [torch.tensor(result.data) for result in results]


def resolved(file: Path) -> Any:
    """Return what is decided of a file's run without flags."""
    return resolve(Config.from_fields({"model": str(file)})).run


def assert_same(ours: torch.Tensor, theirs: torch.Tensor, atol: float = 1e-4) -> None:
    assert ours.shape == theirs.shape
    assert theirs.std() > 0.05, "numbers this flat would hide mistakes"
    torch.testing.assert_close(ours, theirs, rtol=0, atol=atol)


def states_of(model: Any) -> list[torch.Tensor]:
    with torch.inference_mode():
        return [model(torch.tensor([one])).last_hidden_state[0] for one in prompts()]


@pytest.mark.parametrize("name", CASES)
def test_vectors_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    case, file = CASES[name], tmp_path / "model.gguf"
    model = made(case)
    write(case, model, file)
    wanted = [POOLED[case.pooling](one) for one in states_of(model)]
    for ours, theirs in zip(answers(file, "embed"), wanted, strict=True):
        assert_same(ours, theirs)


def _with_head(names: dict[str, str]) -> Any:
    """Return the converter's names of the layers that tell classes."""

    def changed(weights: Arrays) -> Arrays:
        return {_renamed(name, names): values for name, values in weights.items()}

    return changed


def _renamed(name: str, names: dict[str, str]) -> str:
    stem, _, leaf = name.rpartition(".")
    return f"{names.get(stem, stem)}.{leaf}"


ONE = {"classifier": "classifier.out_proj"}
CLASSIFIERS = {
    "roberta": Case(
        architecture="bert",
        name="RobertaForSequenceClassification",
        model_type="roberta",
        fields=ROBERTA,
        changed=_cut_positions,
        pooling="rank",
    ),
    "distilbert": Case(
        architecture="bert",
        name="DistilBertForSequenceClassification",
        model_type="distilbert",
        fields={"dim": 64, "hidden_dim": 96, "n_layers": 2, "n_heads": 4},
        settings={"feed_forward_length": 96},
        changed=_with_head(ONE),
        pooling="",
    ),
    "modern-bert": Case(
        architecture="modern-bert",
        name="ModernBertForSequenceClassification",
        model_type="modernbert",
        fields=MODERN,
        settings=CASES["modern-bert"].settings,
        changed=_with_head(ONE),
        pooling="",
    ),
    "modern-bert-biases": Case(
        architecture="modern-bert",
        name="ModernBertForSequenceClassification",
        model_type="modernbert",
        fields={**MODERN, "classifier_bias": True, "norm_bias": True, "mlp_bias": True},
        settings=CASES["modern-bert"].settings,
        changed=_with_head(ONE),
        pooling="rank",
    ),
}


@pytest.mark.parametrize("name", CLASSIFIERS)
@pytest.mark.parametrize("count", [1, 3])
def test_classes_are_those_of_transformers(name: str, count: int, tmp_path: Path) -> None:
    case, file = CLASSIFIERS[name], tmp_path / "model.gguf"
    model = made(case, num_labels=count)
    labels = [f"kind {i}" for i in range(count)]
    write(case, model, file, more={"classifier.output_labels": labels})
    with torch.inference_mode():
        wanted = [model(torch.tensor([one])).logits[0] for one in prompts()]
    with LLM(str(file), **FLAGS) as llm:
        params = PoolingParams(is_activated=False)
        found = llm.encode(prompts(), params, use_tqdm=False)
    assert resolved(file).pooling.labels == tuple(labels)
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(torch.tensor(ours.data), theirs, rtol=0, atol=1e-4)


WIDE = {"hidden_size": 256, "intermediate_size": 256}
FLOAT = {"plugin_options": {"quantization": {"activations": "float"}}}


@pytest.mark.parametrize("type_name", ["Q8_0", "Q4_K", "F16"])
@pytest.mark.parametrize("name", ["bert", "modern-bert"])
def test_matrices_and_the_token_table_may_be_quantized(
    name: str, type_name: str, tmp_path: Path
) -> None:
    case, file = CASES[name], tmp_path / "model.gguf"
    model = made(case, **WIDE)
    meant = write(case, model, file, type_name=type_name)
    model.load_state_dict({n: torch.from_numpy(v) for n, v in meant.items()}, strict=False)
    wanted = [POOLED[case.pooling](one) for one in states_of(model)]
    flags = {} if type_name == "F16" else FLOAT
    for ours, theirs in zip(answers(file, "embed", **flags), wanted, strict=True):
        assert_same(ours, theirs, atol=1e-3)


@pytest.mark.parametrize("ours", ["cls", "cls.output"])
def test_one_layer_tells_classes_by_the_first_token(
    ours: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Converters leave BERT's pooler out: the matrix is applied to the state itself, as llama.cpp
    does, and the log says that the scores are not the checkpoint's."""
    case, file = CASES["bert"], tmp_path / "model.gguf"
    model = made(case)
    random = np.random.default_rng(1)
    matrix, bias = random.normal(size=(3, 64)) / 8, random.normal(size=3)
    head = {"weight": matrix.astype(np.float32), "bias": bias.astype(np.float32)}
    extra = {f"{ours}.{leaf}": values for leaf, values in head.items()}
    write(case, model, file, extra=extra, more={"pooling_type": 4})
    found = answers(file, "classify")
    assert "lacks the layer before BERT's classifier" in caplog.text
    for one, states in zip(found, states_of(model), strict=True):
        wanted = torch.from_numpy(head["weight"]) @ states[0] + torch.from_numpy(head["bias"])
        torch.testing.assert_close(one, wanted, rtol=0, atol=1e-4)


def _jina(is_joined: bool) -> Arrays:
    """Return random weights of Jina's BERT by GGUF's names: no class of transformers has them."""
    random = np.random.default_rng(5)
    shapes: dict[str, tuple[int, ...]] = {"token_embd": (VOCAB_SIZE, 64), "token_types": (2, 64)}
    inner = {"ffn_up": (192, 64)} if is_joined else {"ffn_gate": (96, 64), "ffn_up": (96, 64)}
    for i in range(2):
        shapes |= {f"blk.{i}.attn_{part}": (64, 64) for part in ("q", "k", "v", "output")}
        shapes |= {f"blk.{i}.{name}": shape for name, shape in inner.items()}
        shapes[f"blk.{i}.ffn_down"] = (64, 96)
    found = {f"{n}.weight": random.normal(size=s) * 0.3 for n, s in shapes.items()}
    for i in range(2):
        names = [f"blk.{i}.attn_{part}" for part in ("q", "k", "v", "output")]
        norms = [f"blk.{i}.attn_output_norm", f"blk.{i}.layer_output_norm"]
        for name in (*names, f"blk.{i}.ffn_down", *norms):
            found[f"{name}.bias"] = random.normal(size=64) * 0.3
        found |= {f"{name}.weight": random.normal(size=64) * 0.3 for name in norms}
    found |= {f"token_embd_norm.{leaf}": random.normal(size=64) for leaf in ("weight", "bias")}
    return {name: values.astype(np.float32) for name, values in found.items()}


def _jina_states(w: dict[str, torch.Tensor], tokens: list[int]) -> torch.Tensor:
    """Return the hidden states of a prompt, by the paper's formulas. Shapes: -> [T, E]"""

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return F.layer_norm(x, (64,), w[f"{name}.weight"], w[f"{name}.bias"], 1e-12)

    def linear(x: torch.Tensor, name: str) -> torch.Tensor:
        return F.linear(x, w[f"{name}.weight"], w.get(f"{name}.bias"))

    x = norm(w["token_embd.weight"][tokens] + w["token_types.weight"][0], "token_embd_norm")
    places = torch.arange(len(tokens))
    slopes = torch.tensor([2.0 ** (-2 * (head + 1)) for head in range(4)])
    bias = -slopes[:, None, None] * (places[:, None] - places[None, :]).abs()
    for i in range(2):
        q, k, v = (
            linear(x, f"blk.{i}.attn_{part}").unflatten(-1, (4, -1)).transpose(0, 1)
            for part in "qkv"
        )
        attended = ((q @ k.transpose(1, 2) / 4 + bias).softmax(-1) @ v).transpose(0, 1).flatten(1)
        x = norm(x + linear(attended, f"blk.{i}.attn_output"), f"blk.{i}.attn_output_norm")
        up = linear(x, f"blk.{i}.ffn_up")
        gate, up = (
            (linear(x, f"blk.{i}.ffn_gate"), up)
            if f"blk.{i}.ffn_gate.weight" in w
            else up.chunk(2, dim=-1)
        )
        inner = linear(F.gelu(gate) * up, f"blk.{i}.ffn_down")
        x = norm(x + inner, f"blk.{i}.layer_output_norm")
    return x


@pytest.mark.parametrize("is_joined", [True, False])
def test_jina_bert_v2(is_joined: bool, tmp_path: Path) -> None:
    """Its gates and inner layers are one matrix today, two in files of 2024."""
    case = Case(architecture="jina-bert-v2", name="BertModel", model_type="bert")
    model, file = made(case), tmp_path / "model.gguf"
    weights = _jina(is_joined)
    write(replace(case, changed=lambda _: {}), model, file, extra=weights)
    tensors = {name: torch.from_numpy(values) for name, values in weights.items()}
    for ours, tokens in zip(answers(file, "embed"), prompts(), strict=True):
        assert_same(ours, _jina_states(tensors, tokens).mean(0))


@pytest.mark.parametrize("name", ["bert", "modern-bert"])
def test_a_layer_without_a_pooler_makes_a_vector_of_each_token(name: str, tmp_path: Path) -> None:
    """Late interaction: the file states no pooling, and has a projection of each token's state."""
    case, file = replace(CASES[name], pooling=""), tmp_path / "model.gguf"
    model = made(case)
    matrix = np.random.default_rng(1).normal(size=(24, 64)).astype(np.float32)
    write(case, model, file, extra={"dense_2.weight": matrix})
    assert resolved(file).pooling.tasks[0] == "token_embed"
    wanted = [one @ torch.from_numpy(matrix).T for one in states_of(model)]
    for ours, theirs in zip(answers(file, "token_embed"), wanted, strict=True):
        assert_same(ours, theirs, atol=1e-3)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"pooling_type": 9}, r"bert\.pooling_type is 9"),
        ({"pooling_type": 4}, r"cls\.output\.weight"),
        ({"feed_forward_length": 80}, r"ffn_up\.weight"),
    ],
)
def test_bad_settings_are_named(settings: dict[str, int], reason: str, tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    write(CASES["bert"], made(CASES["bert"]), file, more=settings)
    with pytest.raises(ConfigError, match=reason):
        resolved(file)


def test_labels_are_as_many_as_classes(tmp_path: Path) -> None:
    case, file = CLASSIFIERS["roberta"], tmp_path / "model.gguf"
    write(case, made(case), file, more={"classifier.output_labels": ["one"]})
    with pytest.raises(ConfigError, match=r"names 1 classes, and cls\.output\.weight has 3"):
        resolved(file)

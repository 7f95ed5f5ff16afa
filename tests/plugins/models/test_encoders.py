"""Encoders tell the vectors and the classes that transformers computes: alone, and in one batch of
prompts of mixed lengths."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from dovetail import LLM, registry
from dovetail.config.config import Config
from dovetail.config.resolve import resolve
from dovetail.errors import ConfigError
from dovetail.interfaces.data.pooling_params import PoolingParams
from dovetail_testing import harness
from dovetail_testing.tiny.families import VOCAB_SIZE
from dovetail_testing.tiny.models import write_tiny_tokenizer
from support.thread_ranks import DividedModel

LENGTHS = (1, 5, 40, 23, 2)
ABSOLUTE, COSINE = 1e-4, 1e-5
FLAGS = {"dtype": "float32", "max_num_batched_tokens": 128, "max_num_seqs": 8}
POOLERS = {"cls": lambda states: states[0], "mean": lambda states: states.mean(0)}
_SIZES = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "num_labels": 3,
}

_DEBERTA = {
    "relative_attention": True,
    "position_buckets": 8,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "pos_att_type": "p2c|c2p",
    "position_biased_input": False,
    "type_vocab_size": 0,
}
_T5 = {
    "d_model": 32,
    "d_kv": 16,
    "d_ff": 48,
    "num_layers": 2,
    "num_attention_heads": 3,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 20,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One family: how its classes' names begin, its type, and fields of its config. `has_classes`:
    transformers has its classes for sequences and tokens, and they are not those of a family
    before. `pooler` is the usual one, `end` how the name of the class for vectors ends."""

    begins: str
    model_type: str
    fields: dict[str, Any] = field(default_factory=dict)
    has_classes: bool = True
    pooler: str = "cls"
    end: str = "Model"


FAMILIES = {
    "bert": Family(begins="Bert", model_type="bert"),
    "roberta": Family(
        begins="Roberta", model_type="roberta", fields={"pad_token_id": 1, "type_vocab_size": 1}
    ),
    "xlm-roberta": Family(
        begins="XLMRoberta", model_type="xlm-roberta", fields={"pad_token_id": 1}, has_classes=False
    ),
    "camembert": Family(begins="Camembert", model_type="camembert", has_classes=False),
    "distilbert": Family(
        begins="DistilBert",
        model_type="distilbert",
        fields={"dim": 32, "hidden_dim": 48, "n_layers": 2, "n_heads": 2},
    ),
    "modernbert": Family(
        begins="ModernBert",
        model_type="modernbert",
        fields={"num_hidden_layers": 4, "local_attention": 6, "attention_bias": True},
    ),
    "modernbert-mean": Family(
        begins="ModernBert",
        model_type="modernbert",
        fields={
            "local_attention": 6,
            "norm_bias": True,
            "mlp_bias": True,
            "classifier_bias": True,
            "classifier_pooling": "mean",
        },
    ),
    "nomic": Family(begins="NomicBert", model_type="nomic_bert", pooler="mean"),
    "jina-v3": Family(
        begins="JinaEmbeddingsV3",
        model_type="jina_embeddings_v3",
        fields={"pad_token_id": 1},
        pooler="mean",
    ),
    "gte": Family(begins="Gte", model_type="gte"),
    "gte-typeless": Family(
        begins="Gte", model_type="gte", fields={"type_vocab_size": 0}, has_classes=False
    ),
    "mpnet": Family(begins="MPNet", model_type="mpnet", fields={"pad_token_id": 1}, pooler="mean"),
    "deberta": Family(begins="DebertaV2", model_type="deberta-v2", fields=_DEBERTA),
    "deberta-far": Family(
        begins="DebertaV2",
        model_type="deberta-v2",
        fields={
            **_DEBERTA,
            "pos_att_type": "c2p",
            "position_buckets": -1,
            "max_relative_positions": 12,
            "position_biased_input": True,
            "type_vocab_size": 2,
            "norm_rel_ebd": "none",
        },
        has_classes=False,
    ),
    "t5": Family(begins="T5", end="EncoderModel", model_type="t5", fields=_T5, pooler="mean"),
    "mt5": Family(
        begins="MT5",
        end="EncoderModel",
        model_type="mt5",
        fields=_T5,
        pooler="mean",
        has_classes=False,
    ),
    "umt5": Family(begins="UMT5", end="EncoderModel", model_type="umt5", fields=_T5, pooler="mean"),
}
CLASSES = [
    (name, end)
    for name, family in FAMILIES.items()
    for end in ("ForSequenceClassification", "ForTokenClassification")
    if family.has_classes and (end == "ForTokenClassification" or family.end == "Model")
]
"""Families and ends of classes; T5 tells classes of texts by its decoder."""


def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(7)
    return [torch.randint(3, VOCAB_SIZE, (n,), generator=generator).tolist() for n in LENGTHS]


def written(folder: Path, family: Family, end: str) -> Any:
    """Write a random checkpoint; return transformers' model of it."""
    import transformers

    config = transformers.AutoConfig.for_model(family.model_type, **(_SIZES | family.fields))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = getattr(transformers, family.begins + end)(config).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn(parameter.shape) * 0.2)
    model.save_pretrained(folder)
    write_tiny_tokenizer(folder)
    return model


@contextmanager
def engine(folder: Path, **flags: Any) -> Iterator[LLM]:
    with LLM(str(folder), **(FLAGS | flags)) as llm:
        yield llm


def told(llm: LLM, task: str, together: list[list[int]]) -> list[torch.Tensor]:
    """Return what prompts are told, in one batch, without an activation or a norm."""
    params = PoolingParams(task=task, is_normalized=False, is_activated=False)
    results = llm.encode(together, params, use_tqdm=False)
    return [torch.tensor(result.data) for result in results]


def assert_same(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    assert ours.shape == theirs.shape
    assert theirs.std() > 0.05, "numbers this flat would hide mistakes"
    assert (ours - theirs).abs().max() <= ABSOLUTE
    assert (1 - torch.cosine_similarity(ours, theirs, dim=-1)).max() <= COSINE


def check(llm: LLM, task: str, wanted: list[torch.Tensor]) -> None:
    for ours, theirs in zip(told(llm, task, prompts()), wanted, strict=True):
        assert_same(ours, theirs)
    (alone,) = told(llm, task, prompts()[3:4])
    assert_same(alone, wanted[3])


@pytest.mark.parametrize("name", FAMILIES)
def test_vectors(tmp_path: Path, name: str) -> None:
    model = written(tmp_path, FAMILIES[name], FAMILIES[name].end)
    with torch.inference_mode():
        states = [model(torch.tensor([p])).last_hidden_state[0] for p in prompts()]
    with engine(tmp_path) as llm:
        check(llm, "token_embed", states)
        check(llm, "embed", [POOLERS[FAMILIES[name].pooler](one) for one in states])


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(("name", "end"), CLASSES)
def test_classes(tmp_path: Path, name: str, end: str) -> None:
    model = written(tmp_path, FAMILIES[name], end)
    with torch.inference_mode():
        logits = [model(torch.tensor([p])).logits[0] for p in prompts()]
    task = "classify" if end == "ForSequenceClassification" else "token_classify"
    with engine(tmp_path) as llm:
        check(llm, task, logits)


@pytest.mark.parametrize(
    ("name", "end", "flags"),
    [
        ("bert", "ForSequenceClassification", {"convert": "embed"}),
        ("modernbert", "ForTokenClassification", {"convert": "embed"}),
        ("t5", "ForSequenceClassification", {"convert": "embed"}),
        ("umt5", "ForConditionalGeneration", {"runner": "pooling"}),
    ],
)
def test_vectors_of_models_that_were_saved_for_something_else(
    tmp_path: Path, name: str, end: str, flags: dict[str, str]
) -> None:
    model = written(tmp_path, FAMILIES[name], end)
    trunk = model.base_model if name.endswith("bert") else model.get_encoder()
    with torch.inference_mode():
        states = [trunk(torch.tensor([p])).last_hidden_state[0] for p in prompts()]
    if name == "t5":
        with pytest.raises(ConfigError, match="by the last state of its decoder"):
            LLM(str(tmp_path), **FLAGS)
    with engine(tmp_path, **flags) as llm:
        check(llm, "token_embed", states)


OLDER: dict[str, dict[str, Any]] = {
    "modernbert": {
        "layer_types": None,
        "rope_parameters": None,
        "global_attn_every_n_layers": 3,
        "global_rope_theta": 160000.0,
        "local_rope_theta": 10000.0,
    },
    "nomic": {
        **dict.fromkeys(("hidden_size", "num_hidden_layers", "num_attention_heads"), None),
        **dict.fromkeys(("intermediate_size", "hidden_act", "max_position_embeddings"), None),
        **dict.fromkeys(("layer_norm_eps", "rope_parameters", "head_dim"), None),
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 2,
        "n_inner": 48,
        "n_positions": 64,
        "activation_function": "swiglu",
        "layer_norm_epsilon": 1e-12,
        "rotary_emb_base": 1000,
        "rotary_emb_fraction": 1.0,
        "qkv_proj_bias": False,
    },
}
"""Family -> what its first config.json said in other words (None: nothing)."""


@pytest.mark.parametrize("name", OLDER)
def test_older_spellings_of_settings(tmp_path: Path, name: str) -> None:
    model = written(tmp_path, FAMILIES[name], "Model")
    file = tmp_path / "config.json"
    said = json.loads(file.read_text()) | OLDER[name]
    file.write_text(json.dumps({key: value for key, value in said.items() if value is not None}))
    with torch.inference_mode():
        states = [model(torch.tensor([p])).last_hidden_state[0] for p in prompts()]
    with engine(tmp_path) as llm:
        check(llm, "token_embed", states)


JINA_HEADS = 4
JINA: dict[str, Any] = {
    "architectures": ["JinaBertModel"],
    "model_type": "bert",
    "hidden_act": "gelu",
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 16 * JINA_HEADS,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": JINA_HEADS,
    "max_position_embeddings": 64,
    "position_embedding_type": "alibi",
    "feed_forward_type": "geglu",
    "type_vocab_size": 2,
}


def jina_weights() -> dict[str, torch.Tensor]:
    """Return a random checkpoint of Jina's BERT, by the names of its own code."""
    size, inner = JINA["hidden_size"], JINA["intermediate_size"]
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (VOCAB_SIZE, size),
        "embeddings.token_type_embeddings.weight": (2, size),
    }
    norms = ["embeddings.LayerNorm"]
    for i in range(JINA["num_hidden_layers"]):
        layer = f"encoder.layer.{i}"
        linears = {name: (size, size) for name in ("query", "key", "value")}
        parts = {f"attention.self.{name}": shape for name, shape in linears.items()}
        parts |= {"attention.output.dense": (size, size), "mlp.wo": (size, inner)}
        shapes[f"{layer}.mlp.gated_layers.weight"] = (2 * inner, size)
        for name, shape in parts.items():
            shapes |= {f"{layer}.{name}.weight": shape, f"{layer}.{name}.bias": shape[:1]}
        norms += [f"{layer}.attention.output.LayerNorm", f"{layer}.mlp.layernorm"]
    for name in norms:
        shapes |= {f"{name}.weight": (size,), f"{name}.bias": (size,)}
    generator = torch.Generator().manual_seed(5)
    return {name: torch.randn(s, generator=generator) * 0.3 for name, s in shapes.items()}


def jina_states(w: dict[str, torch.Tensor], tokens: list[int]) -> torch.Tensor:
    """Return the hidden states of a prompt, by the paper's formulas. Shapes: -> [T, E]"""

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return F.layer_norm(x, x.shape[-1:], w[f"{name}.weight"], w[f"{name}.bias"], 1e-12)

    def linear(x: torch.Tensor, name: str) -> torch.Tensor:
        return F.linear(x, w[f"{name}.weight"], w.get(f"{name}.bias"))

    x = (
        w["embeddings.word_embeddings.weight"][tokens]
        + w["embeddings.token_type_embeddings.weight"][0]
    )
    x = norm(x, "embeddings.LayerNorm")
    places = torch.arange(len(tokens))
    slopes = torch.tensor([2.0 ** (-8 * (h + 1) / JINA_HEADS) for h in range(JINA_HEADS)])
    bias = -slopes[:, None, None] * (places[:, None] - places[None, :]).abs()
    for i in range(JINA["num_hidden_layers"]):
        layer = f"encoder.layer.{i}"
        q, k, v = (
            linear(x, f"{layer}.attention.self.{name}")
            .unflatten(-1, (JINA_HEADS, -1))
            .transpose(0, 1)
            for name in ("query", "key", "value")
        )
        weights = (q @ k.transpose(1, 2) * q.shape[-1] ** -0.5 + bias).softmax(-1)
        attended = (weights @ v).transpose(0, 1).flatten(1)
        x = norm(
            x + linear(attended, f"{layer}.attention.output.dense"),
            f"{layer}.attention.output.LayerNorm",
        )
        gate, up = linear(x, f"{layer}.mlp.gated_layers").chunk(2, dim=-1)
        x = norm(x + linear(F.gelu(gate) * up, f"{layer}.mlp.wo"), f"{layer}.mlp.layernorm")
    return x


def test_jina_on_two_ranks_and_one(tmp_path: Path) -> None:
    """No class of transformers has ALiBi among all tokens. Two ranks divide heads, with them the
    biases, and the gated inner layer."""
    weights = jina_weights()
    save_file(weights, str(tmp_path / "model.safetensors"))
    (tmp_path / "config.json").write_text(json.dumps(JINA))
    write_tiny_tokenizer(tmp_path)
    states = [jina_states(weights, tokens) for tokens in prompts()]
    for ranks in (1, 2):
        with engine(tmp_path, tensor_parallel_size=ranks) as llm:
            check(llm, "token_embed", states)


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("name", FAMILIES)
def test_two_ranks_compute_as_one(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has half of the heads and of the inner layers; all texts are in one batch."""
    family = FAMILIES[name]
    even = {"num_attention_heads": 4} if family.end == "EncoderModel" else {}
    written(tmp_path, replace(family, fields=family.fields | even), family.end)
    config = Config.from_fields({"model": str(tmp_path), "dtype": "float32"})
    facts = resolve(config).run.model  # which know that there is no head
    monkeypatch.setattr(harness, "load_model_facts", lambda *given, **more: facts)
    batch = list(enumerate(prompts()))
    whole = harness.PagedModel(harness.load_model(tmp_path))
    divided = DividedModel(tmp_path, 2, monkeypatch)
    assert (divided.hidden(batch) - whole.hidden(batch)).abs().max() <= ABSOLUTE
    sizes = [sum(p.numel() for p in one.module.parameters()) for one in (*divided.ranks, whole)]
    assert sizes[0] == sizes[1] < 0.7 * sizes[2]


def test_every_registered_encoder_has_a_case() -> None:
    here = {entry.name for entry in registry.entries("model") if is_encoder(entry.name)}
    tried = {family.begins + family.end for family in FAMILIES.values()}
    elsewhere = {"NewModel", "JinaBertModel", "BgeM3EmbeddingModel", "VitsModel"}
    elsewhere |= {"CLIPModel", "SiglipModel", "Siglip2Model"}  # tests/e2e/test_dual_encoders.py
    assert here - tried == elsewhere, "add it to FAMILIES"


def is_encoder(name: str) -> bool:
    return name.endswith("Model") and not name.endswith(("LMHeadModel", "MTModel"))

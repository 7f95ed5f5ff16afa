"""Encoders tell the vectors and the classes that transformers computes: alone, and in one batch of
prompts of mixed lengths."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from dovetail import LLM
from dovetail.interfaces.pooling_params import PoolingParams
from dovetail.testing.tiny_models import VOCAB_SIZE, write_tiny_tokenizer

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

_T5 = {
    "d_model": 32,
    "d_kv": 16,
    "d_ff": 48,
    "num_layers": 2,
    "num_heads": 3,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 20,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One family: how its classes' names begin, its type, and fields of its config. `has_classes`:
    transformers has its classes for sequences and tokens, and they are not those of a family
    before. `pooler` is the usual one."""

    begins: str
    model_type: str
    fields: dict[str, Any] = field(default_factory=dict)
    has_classes: bool = True
    pooler: str = "cls"


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
    "gte": Family(begins="Gte", model_type="gte"),
    "gte-typeless": Family(
        begins="Gte", model_type="gte", fields={"type_vocab_size": 0}, has_classes=False
    ),
    "mpnet": Family(begins="MPNet", model_type="mpnet", fields={"pad_token_id": 1}, pooler="mean"),
    "t5": Family(begins="T5Encoder", model_type="t5", fields=_T5, pooler="mean", has_classes=False),
    "t5-gated": Family(
        begins="T5Encoder",
        model_type="t5",
        fields={**_T5, "feed_forward_proj": "gated-gelu"},
        pooler="mean",
        has_classes=False,
    ),
}
WITH_CLASSES = [name for name, family in FAMILIES.items() if family.has_classes]


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
    model = written(tmp_path, FAMILIES[name], "Model")
    with torch.inference_mode():
        states = [model(torch.tensor([p])).last_hidden_state[0] for p in prompts()]
    with engine(tmp_path) as llm:
        check(llm, "token_embed", states)
        check(llm, "embed", [POOLERS[FAMILIES[name].pooler](one) for one in states])


@pytest.mark.parametrize("name", WITH_CLASSES)
@pytest.mark.parametrize("end", ["ForSequenceClassification", "ForTokenClassification"])
def test_classes(tmp_path: Path, name: str, end: str) -> None:
    model = written(tmp_path, FAMILIES[name], end)
    with torch.inference_mode():
        logits = [model(torch.tensor([p])).logits[0] for p in prompts()]
    task = "classify" if end == "ForSequenceClassification" else "token_classify"
    with engine(tmp_path) as llm:
        check(llm, task, logits)

"""Encoders that only transformers has: their vectors and classes are transformers' own, of a text
alone and of the same text in a batch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from dovetail import LLM
from dovetail.errors import ConfigError
from dovetail.interfaces.data.pooling_params import PoolingParams
from dovetail_testing.tiny.families import VOCAB_SIZE
from dovetail_testing.tiny.models import write_tiny_tokenizer

FLAGS = {"dtype": "float32", "max_num_batched_tokens": 128, "max_num_seqs": 8}
LENGTHS = (1, 5, 40, 23, 2)
SIZES = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 1,
    "num_labels": 3,
}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "Albert": ("albert", {"embedding_size": 16}),
    "Electra": ("electra", {"embedding_size": 16}),
    "ConvBert": ("convbert", {"embedding_size": 32}),
    "Data2VecText": ("data2vec-text", {}),
    "Deberta": ("deberta", {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]}),
    "Ernie": ("ernie", {}),
    "Esm": ("esm", {"position_embedding_type": "rotary", "mask_token_id": 4}),
    "FNet": ("fnet", {}),
    "Funnel": ("funnel", {"d_model": 32, "n_head": 4, "d_head": 8, "d_inner": 48,
                          "block_sizes": [1, 1]}),
    "LayoutLM": ("layoutlm", {}),
    "Longformer": ("longformer", {"attention_window": 4}),
    "Luke": ("luke", {"entity_vocab_size": 8, "entity_emb_size": 16}),
    "MegatronBert": ("megatron-bert", {}),
    "MobileBert": ("mobilebert", {"embedding_size": 16, "true_hidden_size": 16,
                                  "intra_bottleneck_size": 16, "num_feedforward_networks": 2}),
    "Nystromformer": ("nystromformer", {"num_landmarks": 64, "segment_means_seq_len": 64}),
    "RemBert": ("rembert", {"input_embedding_size": 16, "output_embedding_size": 16}),
    "RoCBert": ("roc_bert", {}),
    "RoFormer": ("roformer", {"embedding_size": 16}),
    "RobertaPreLayerNorm": ("roberta-prelayernorm", {}),
    "SqueezeBert": ("squeezebert", {"embedding_size": 32}),
    "XLMRobertaXL": ("xlm-roberta-xl", {}),
    "XLM": ("xlm", {"emb_dim": 32, "n_layers": 2, "n_heads": 4}),
    "EuroBert": ("eurobert", {"num_key_value_heads": 2, "head_dim": 8}),
}  # fmt: skip
SHORTEST = {"Funnel": 5}
"""The shortest texts that transformers' code of a family can read."""
SEQUENCE, TOKEN = "ForSequenceClassification", "ForTokenClassification"


def prompts(name: str = "") -> list[list[int]]:
    """Return texts of mixed lengths, which transformers' code of a family can read."""
    generator = torch.Generator().manual_seed(7)
    texts = [torch.randint(5, VOCAB_SIZE, (n,), generator=generator).tolist() for n in LENGTHS]
    return [one for one in texts if len(one) >= SHORTEST.get(name, 1)]


def written(folder: Path, name: str, end: str, **more: Any) -> Any:
    """Write a random checkpoint; return transformers' model of it."""
    import transformers

    model_type, fields = FAMILIES[name]
    fields = {**_fitting(model_type), **fields, **more}
    config = transformers.AutoConfig.for_model(model_type, **fields)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = getattr(transformers, name + end)(config).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn(parameter.shape) * 0.1)
    model.save_pretrained(folder)
    write_tiny_tokenizer(folder)
    return model


def _fitting(model_type: str) -> dict[str, Any]:
    sizes = {"hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"}
    has_own = model_type in ("funnel", "xlm")
    return {k: v for k, v in SIZES.items() if not has_own or k not in sizes}


def answers(llm: LLM, texts: list[list[int]], task: str) -> list[torch.Tensor]:
    params = PoolingParams(task=task, is_normalized=False, is_activated=False)
    return [torch.tensor(one.data) for one in llm.encode(texts, params, use_tqdm=False)]


def check(folder: Path, name: str, task: str, wanted: list[torch.Tensor]) -> None:
    with LLM(str(folder), **FLAGS) as llm:
        together = answers(llm, prompts(name), task)
        alone = [answers(llm, [one], task)[0] for one in prompts(name)]
    for one, other, theirs in zip(together, alone, wanted, strict=True):
        assert torch.equal(one, other)
        torch.testing.assert_close(one, theirs, rtol=0, atol=1e-4)
    assert max(one.std() for one in wanted) > 0.01, "numbers this flat would hide mistakes"


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("name", FAMILIES)
def test_vectors(name: str, tmp_path: Path) -> None:
    model = written(tmp_path, name, "Model")
    with torch.inference_mode():
        states = [model(torch.tensor([one])).last_hidden_state[0] for one in prompts(name)]
    check(tmp_path, name, "token_embed", states)


@pytest.mark.sampled(every=6)
@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("end", [SEQUENCE, TOKEN])
def test_classes(name: str, end: str, tmp_path: Path) -> None:
    import transformers

    if not hasattr(transformers, name + end):
        pytest.skip("transformers has no such class")
    model = written(tmp_path, name, end)
    with torch.inference_mode():
        logits = [model(torch.tensor([one])).logits[0] for one in prompts(name)]
    check(tmp_path, name, "classify" if end == SEQUENCE else "token_classify", logits)


def test_a_text_that_the_code_fails_for_ends_alone(tmp_path: Path) -> None:
    written(tmp_path, "Funnel", "Model")
    params = PoolingParams(task="embed")
    with LLM(str(tmp_path), **FLAGS) as llm:
        short, long = llm.encode([[7], prompts()[1]], params, use_tqdm=False)
    assert short.error is not None
    assert long.error is None


@pytest.mark.parametrize(
    ("name", "end"),
    [("Electra", "ForPreTraining"), ("Albert", "ForMaskedLM"), ("RoFormer", "ForMaskedLM")],
)
def test_vectors_of_the_part_below_another_head(name: str, end: str, tmp_path: Path) -> None:
    model = written(tmp_path, name, end)
    with torch.inference_mode():
        states = [model.base_model(torch.tensor([p])).last_hidden_state[0] for p in prompts()]
    check(tmp_path, name, "token_embed", states)


def test_old_names_of_norms_and_tables(tmp_path: Path) -> None:
    model = written(tmp_path, "Electra", "Model")
    file = tmp_path / "model.safetensors"
    old = {}
    for key, value in load_file(file).items():
        stem = key.replace("LayerNorm.weight", "LayerNorm.gamma")
        old["electra." + stem.replace("LayerNorm.bias", "LayerNorm.beta")] = value
    old["electra.embeddings.position_ids"] = torch.arange(64).unsqueeze(0)
    save_file(old, file, metadata={"format": "pt"})
    with torch.inference_mode():
        states = [model(torch.tensor([p])).last_hidden_state[0] for p in prompts()]
    check(tmp_path, "Electra", "token_embed", states)


def test_the_first_of_two_texts_is_told_apart(tmp_path: Path) -> None:
    model = written(tmp_path, "Electra", SEQUENCE, num_labels=1)
    ids = prompts()[2]
    types = torch.tensor([[0] * 15 + [1] * 25])
    with torch.inference_mode():
        wanted = model(torch.tensor([ids]), token_type_ids=types).logits[0]
    params = PoolingParams(task="classify", is_activated=False, first_text_tokens=15)
    with LLM(str(tmp_path), **FLAGS) as llm:
        (found,) = llm.encode([ids], params, use_tqdm=False)
    torch.testing.assert_close(torch.tensor(found.data), wanted, rtol=0, atol=1e-4)


def test_classes_of_texts_are_not_those_of_tokens(tmp_path: Path) -> None:
    written(tmp_path, "Electra", SEQUENCE)
    with LLM(str(tmp_path), **FLAGS) as llm:
        params = PoolingParams(task="token_classify")
        (found,) = llm.encode([prompts()[1]], params, use_tqdm=False)
    assert "whole texts, not of their tokens" in str(found.error)


def test_what_a_file_lacks_or_has_too_much_is_named(tmp_path: Path) -> None:
    written(tmp_path, "Electra", SEQUENCE)
    file = tmp_path / "model.safetensors"
    weights = load_file(file)
    del weights["electra.encoder.layer.0.output.dense.weight"]
    weights["electra.encoder.layer.7.output.dense.weight"] = torch.zeros(2)
    save_file(weights, file, metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=r"layer\.0\.output\.dense\.weight.*layer\.7"):
        LLM(str(tmp_path), **FLAGS)


@pytest.mark.parametrize(
    ("name", "fields", "reason"),
    [
        ("Electra", {"hidden_act": "unheard"}, "transformers cannot make it"),
        ("Nystromformer", {"segment_means_seq_len": 48, "num_landmarks": 6}, "trial call"),
    ],
)
def test_refused_with_the_reason(
    name: str, fields: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    written(tmp_path, name, "Model")
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields | {"head_dim": 8}))
    with pytest.raises(ConfigError, match=reason):
        LLM(str(tmp_path), **FLAGS)


def test_every_type_with_a_mask_is_an_encoder() -> None:
    """The types that transformers predicts masked words with see all of a text."""
    from dovetail.config.checkpoint.model_facts import facts_of
    from dovetail.config.rules.model.transformers_models import known_classes

    unknown = {
        t for t in known_classes().masked_types if not facts_of({"model_type": t}).is_encoder
    }
    assert unknown <= {"bart", "mbart", "mvp", "plbart", "modernvbert", "neomme"} | PICTURES


PICTURES = {"ultrabert", "ultravbert"}
"""Types that read pictures, too."""

"""Encoders that only transformers has: their vectors and classes are transformers' own, of a text
alone and of the same text in a batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from dovetail import LLM
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


@pytest.mark.parametrize("name", FAMILIES)
def test_vectors(name: str, tmp_path: Path) -> None:
    model = written(tmp_path, name, "Model")
    with torch.inference_mode():
        states = [model(torch.tensor([one])).last_hidden_state[0] for one in prompts(name)]
    check(tmp_path, name, "token_embed", states)


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

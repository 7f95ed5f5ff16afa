"""Decoders that pool instead of generating: vectors, classes and rewards equal transformers', or
those of the published layout where it has no class, whatever way a prompt is computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from dovetail import LLM
from dovetail.errors import RequestError
from dovetail.interfaces.data.pooling_params import PoolingParams
from dovetail_testing.tiny.families import VOCAB_SIZE
from support.tiny_decoders import SIZE, hidden_states, saved, tiny_model, to_length_1, write_modules

pytestmark = pytest.mark.e2e

FLAGS: dict[str, Any] = {
    "max_model_len": 64,
    "max_num_batched_tokens": 24,
    "max_num_seqs": 4,
    "block_size": 8,
    "num_gpu_blocks_override": 28,
    "dtype": "float32",
    "runner": "pooling",
    "use_tqdm_on_load": False,
}
"""Prompts come in parts, and the cache is too small for all of them at once."""
WHOLE = {"max_num_batched_tokens": 64}
"""Where tokens see all others, a prompt is computed in one step."""
WINDOWED = {"MistralForCausalLM", "Gemma2ForCausalLM", "Gemma3ForCausalLM"}
EMBED, TOKENS, CLASSES, TOKEN_CLASSES = "embed", "token_embed", "classify", "token_classify"
Reference = Callable[[Sequence[int]], torch.Tensor]
LAST = {"pooling_mode_lasttoken": True}
MEAN = {"pooling_mode_mean_tokens": True}


def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(7)
    lengths = (5, 19, 33, 1, 26, 40)
    return [torch.randint(3, VOCAB_SIZE, (n,), generator=generator).tolist() for n in lengths]


@contextmanager
def served(path: Path, **flags: Any) -> Iterator[LLM]:
    with LLM(model=str(path), **{**FLAGS, **flags}) as llm:
        yield llm


def assert_equal(llm: LLM, task: str, reference: Reference, **params: Any) -> int:
    """Assert that all prompts become what the reference says, also the longest once more; return
    how many of its tokens came from the cache."""
    asked = prompts()
    longest = max(asked, key=len)
    pooling = PoolingParams(task=task, **params)
    results = llm.encode(asked, pooling, use_tqdm=False)
    (again,) = llm.encode([longest], pooling, use_tqdm=False)
    with torch.inference_mode():
        wanted = [reference(ids).float().numpy() for ids in (*asked, longest)]
    for result, one in zip((*results, again), wanted, strict=True):
        assert result.error is None, result.error
        np.testing.assert_allclose(result.data, one, rtol=0, atol=1e-4)
        if one.ndim == 1 and task == EMBED:
            assert 1 - _cosine(result.data, one) <= 1e-5
    return again.num_cached_tokens


def _cosine(a: np.ndarray, b: np.ndarray) -> float:
    a, b = a.astype(np.float64), b.astype(np.float64)
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def logits_of(model: Any) -> Reference:
    """Return what gives the logits of a model of transformers that classifies."""
    return lambda ids: model(input_ids=torch.tensor([list(ids)])).logits[0]


FAMILIES = [
    ("LlamaForCausalLM", "LlamaModel", EMBED),
    ("MistralForCausalLM", "MistralModel", TOKENS),
    ("Qwen2ForCausalLM", "Qwen2ForTokenClassification", TOKEN_CLASSES),
    ("Qwen3ForCausalLM", "Qwen3ForSequenceClassification", CLASSES),
    ("Qwen2MoeForCausalLM", "Qwen2MoeForTokenClassification", TOKEN_CLASSES),
    ("Qwen3MoeForCausalLM", "Qwen3MoeModel", EMBED),
    ("MixtralForCausalLM", "MixtralForSequenceClassification", CLASSES),
    ("GemmaForCausalLM", "GemmaForTokenClassification", TOKEN_CLASSES),
    ("Gemma2ForCausalLM", "Gemma2Model", EMBED),
    ("Gemma3ForCausalLM", "Gemma3TextForSequenceClassification", CLASSES),
    ("Phi3ForCausalLM", "Phi3ForTokenClassification", TOKEN_CLASSES),
    ("OPTForCausalLM", "OPTForSequenceClassification", CLASSES),
    ("GPT2LMHeadModel", "GPT2ForTokenClassification", TOKEN_CLASSES),
    ("GPTNeoXForCausalLM", "GPTNeoXForTokenClassification", TOKEN_CLASSES),
    ("StableLmForCausalLM", "StableLmForSequenceClassification", CLASSES),
    ("BambaForCausalLM", "BambaModel", EMBED),
    ("JambaForCausalLM", "JambaForSequenceClassification", CLASSES),
    ("Jais2ForCausalLM", "Jais2Model", TOKENS),
    ("PersimmonForCausalLM", "PersimmonForSequenceClassification", CLASSES),
]
"""Family, class of transformers, and what is asked of it: each family once, all heads."""


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(
    ("family", "name", "task"), FAMILIES, ids=[name for _, name, _ in FAMILIES]
)
def test_every_family_equals_transformers(
    family: str, name: str, task: str, tmp_path: Path
) -> None:
    changes: dict[str, Any] = {"num_labels": 3} if task in (CLASSES, TOKEN_CLASSES) else {}
    if family == "OPTForCausalLM":
        changes["word_embed_proj_dim"] = 16
    model = tiny_model(name, family, **changes)
    blocks = 40 if family in WINDOWED else FLAGS["num_gpu_blocks_override"]
    with served(saved(model, tmp_path), num_gpu_blocks_override=blocks) as llm:
        if task == EMBED:
            cached = assert_equal(llm, task, lambda ids: to_length_1(hidden_states(model, ids)[-1]))
        elif task == TOKENS:
            cached = assert_equal(llm, task, lambda ids: to_length_1(hidden_states(model, ids)))
        else:
            assert llm.spec.run.pooling is not None
            assert llm.spec.run.pooling.labels == ("LABEL_0", "LABEL_1", "LABEL_2")
            cached = assert_equal(llm, task, lambda ids: logits_of(model)(ids).softmax(-1))
            assert_equal(llm, task, logits_of(model), is_activated=False)
    is_of_last = task in (EMBED, CLASSES)
    assert (cached >= 8) is is_of_last  # what needs every token takes nothing from the cache


def test_qwen3_embedding(tmp_path: Path) -> None:
    """A decoder with its LM head, in a folder of sentence-transformers; vectors can be cut."""
    model = tiny_model("Qwen3ForCausalLM", "Qwen3ForCausalLM")
    folder = write_modules(saved(model, tmp_path), pooling=LAST, behind=[("Normalize", None)])

    def vector(ids: Sequence[int], size: int = SIZE) -> torch.Tensor:
        return to_length_1(hidden_states(model.model, ids)[-1][:size])

    with served(folder, runner="auto", hf_overrides={"is_matryoshka": True}) as llm:
        assert assert_equal(llm, EMBED, vector) >= 8
        assert_equal(llm, EMBED, lambda ids: vector(ids, 12), dimensions=12)
        with pytest.raises(RequestError, match="the model's vectors have 32"):
            llm.encode([[5]], PoolingParams(task=EMBED, dimensions=33))
        with pytest.raises(RequestError, match="does not do classify"):
            llm.encode([[5]], PoolingParams(task=CLASSES))


BOTH_SIDES = [
    ("MistralForCausalLM", "MistralForCausalLM", {"is_causal": False, "sliding_window": None}),
    ("Qwen2ForCausalLM", "Qwen2ForCausalLM", {"is_causal": False}),
    (
        "LlamaForCausalLM",
        "LlamaForCausalLM",
        {
            "model_type": "llama_bidirec",
            "architectures": ["LlamaBidirectionalModel"],
            "pooling": "avg",
        },
    ),
]
"""Family, class and what its published config.json says: GritLM's embedding side, gte-Qwen2,
Llama as llama-nemotron-embed has it."""


@pytest.mark.parametrize(("family", "name", "told"), BOTH_SIDES, ids=["GritLM", "gte", "nemotron"])
def test_decoders_that_see_both_sides(
    family: str, name: str, told: dict[str, Any], tmp_path: Path
) -> None:
    changes = {"sliding_window": None} if family == "MistralForCausalLM" else {}
    model = tiny_model(name, family, **changes)
    folder = saved(model, tmp_path, **told)
    if "pooling" not in told:
        write_modules(folder, pooling=MEAN, behind=[("Normalize", None)])
    with served(folder, **WHOLE) as llm:
        cached = assert_equal(
            llm,
            EMBED,
            lambda ids: to_length_1(hidden_states(model.model, ids, sees_all=True).mean(dim=0)),
        )
    assert cached == 0


@pytest.mark.parametrize("layers", ["full_attention", "sliding_attention"])
def test_embedding_gemma(layers: str, tmp_path: Path) -> None:
    """Tokens see both sides, half a window on each where layers slide; two Dense layers behind."""
    model = tiny_model(
        "Gemma3TextModel",
        "Gemma3ForCausalLM",
        layer_types=[layers, "full_attention"],
        sliding_window=12,
        use_bidirectional_attention=True,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        dense = [nn.Linear(SIZE, 48, bias=False), nn.Linear(48, 24)]
    behind = [("Dense", dense[0]), ("Dense", dense[1]), ("Normalize", None)]
    folder = write_modules(saved(model, tmp_path), pooling=MEAN, behind=behind)
    with served(folder, runner="auto", **WHOLE) as llm:
        assert_equal(
            llm,
            EMBED,
            lambda ids: to_length_1(dense[1](dense[0](hidden_states(model, ids).mean(dim=0)))),
        )
        told = llm.encode(["hello there"], use_tqdm=False)[0]
        assert told.data.shape == (24,)


def test_colbert(tmp_path: Path) -> None:
    """BERT and a matrix: a small vector of length 1 for every token."""
    import transformers

    shape = {"hidden_size": SIZE, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = transformers.BertConfig(vocab_size=VOCAB_SIZE, intermediate_size=48, **shape)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = transformers.BertModel(config, add_pooling_layer=False).eval()
        matrix = torch.randn(12, SIZE)
    folder = saved(model, tmp_path, architectures=["HF_ColBERT"], dim=12)
    file = folder / "model.safetensors"
    stored = {f"bert.{name}": tensor for name, tensor in load_file(file).items()}
    save_file({**stored, "linear.weight": matrix}, file, metadata={"format": "pt"})
    with served(folder, runner="auto", **WHOLE) as llm:
        assert_equal(llm, TOKENS, lambda ids: to_length_1(hidden_states(model, ids) @ matrix.T))
        with pytest.raises(RequestError, match="it does token_embed"):
            llm.encode([[5]], PoolingParams(task=EMBED))

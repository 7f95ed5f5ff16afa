"""LLM.embed, classify, score and reward: equal to transformers, with vLLM's result shapes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from dovetail import LLM, PoolingParams
from dovetail.errors import RequestError, RequestFault
from support.tiny_encoders import (
    mixed_texts,
    word_tokenizer,
    write_sentence_settings,
    write_tiny_bert,
)

TEXTS = ["", *mixed_texts(7, most_words=24)]
PROMPTS = {"query": "where is the ", "document": ""}
SHORT = "the dog sleeps"


def opened(folder: Path, **flags: Any) -> LLM:
    return LLM(str(folder), use_tqdm_on_load=False, **flags)


@pytest.fixture(scope="module")
def sentences(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model of sentences: mean, a layer behind it, normalized."""
    folder = write_tiny_bert(tmp_path_factory.mktemp("sentences"))
    return write_sentence_settings(folder, dense=16, max_tokens=100, prompts=PROMPTS)


@pytest.fixture(scope="module")
def embedder(sentences: Path) -> Iterator[LLM]:
    with opened(sentences, hf_overrides={"matryoshka_dimensions": [8, 16]}) as llm:
        yield llm


@pytest.fixture(scope="module")
def ranker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    with opened(write_tiny_bert(tmp_path_factory.mktemp("ranker"), num_classes=1)) as llm:
        yield llm


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    with opened(write_tiny_bert(tmp_path_factory.mktemp("classes"), num_classes=3)) as llm:
        yield llm


def reference(llm: LLM, made: str) -> tuple[Any, Any]:
    """Return transformers' model and tokenizer of an LLM's folder."""
    import transformers

    folder = llm.spec.run.model.path
    model = getattr(transformers, made).from_pretrained(folder).eval()
    return model, transformers.AutoTokenizer.from_pretrained(folder)


def sentence_vectors(llm: LLM, texts: list[str], **cut: Any) -> np.ndarray:
    """Return the vectors as sentence-transformers makes them."""
    model, tokenizer = reference(llm, "BertModel")
    dense = load_file(Path(llm.spec.run.model.path) / "2_Dense" / "model.safetensors")
    found = []
    with torch.inference_mode():
        for text in texts:
            mean = model(**tokenizer(text, return_tensors="pt", **cut)).last_hidden_state[0].mean(0)
            out = torch.tanh(dense["linear.weight"] @ mean + dense["linear.bias"])
            found.append(torch.nn.functional.normalize(out, dim=0).numpy())
    return np.stack(found)


def vectors(llm: LLM, prompts: Any, **how: Any) -> np.ndarray:
    return np.array([r.outputs.embedding for r in llm.embed(prompts, use_tqdm=False, **how)])


def test_vectors_equal_the_reference(embedder: LLM) -> None:
    found = embedder.embed(TEXTS, use_tqdm=False)
    wanted = sentence_vectors(embedder, TEXTS)
    assert np.abs(np.array([one.outputs.embedding for one in found]) - wanted).max() < 1e-5
    assert [one.prompt for one in found] == TEXTS
    assert found[0].outputs.hidden_size == 16
    _, tokenizer = reference(embedder, "BertModel")
    assert list(found[0].prompt_token_ids) == tokenizer(TEXTS[0])["input_ids"]


def test_token_ids_are_taken_as_they_are(embedder: LLM) -> None:
    ids = embedder.tokenizer.encode(SHORT)
    both = vectors(embedder, [SHORT, ids, {"prompt_token_ids": ids}])
    assert np.array_equal(both[1], both[2])
    assert np.abs(both[0] - both[1]).max() < 1e-6


def test_the_prompts_of_the_checkpoint(embedder: LLM) -> None:
    named = vectors(embedder, SHORT, prompt_name="query")
    assert np.abs(named - vectors(embedder, PROMPTS["query"] + SHORT)).max() < 1e-6
    assert np.abs(named - vectors(embedder, SHORT, prompt_name="document")).max() > 1e-3
    with pytest.raises(RequestError, match='no prompt "passage"; there are: document, query'):
        embedder.embed(SHORT, prompt_name="passage")
    with pytest.raises(RequestError, match="not before token ids"):
        embedder.embed([[5, 6]], prompt_name="query")


def test_long_texts_are_cut_as_asked(embedder: LLM) -> None:
    long = " ".join(TEXTS * 4)
    wanted = sentence_vectors(embedder, [long], truncation=True, max_length=9)
    assert np.abs(vectors(embedder, long, truncate_prompt_tokens=9) - wanted).max() < 1e-5
    wanted = sentence_vectors(embedder, [long], truncation=True, max_length=100)
    assert np.abs(vectors(embedder, long, truncate_prompt_tokens=-1) - wanted).max() < 1e-5
    with pytest.raises(RequestError, match="this model's maximum context length is 100"):
        embedder.embed([SHORT, long])


def test_fewer_dimensions(embedder: LLM) -> None:
    params = PoolingParams(task="embed", dimensions=8)
    cut = vectors(embedder, SHORT, pooling_params=params)[0]
    whole = vectors(embedder, SHORT)[0][:8]
    assert np.abs(cut - whole / np.linalg.norm(whole)).max() < 1e-6


def test_vectors_of_tokens(embedder: LLM) -> None:
    (found,) = embedder.encode(SHORT, pooling_task="token_embed", use_tqdm=False)
    assert found.outputs.data.shape == (5, 16)
    assert np.allclose(np.linalg.norm(found.outputs.data, axis=1), 1, atol=1e-6)


def test_scores_of_vectors_are_cosines(embedder: LLM) -> None:
    found = embedder.score(TEXTS[0], TEXTS, use_tqdm=False)
    wanted = sentence_vectors(embedder, TEXTS) @ sentence_vectors(embedder, TEXTS[:1])[0]
    assert [one.outputs.score for one in found] == pytest.approx(wanted.tolist(), abs=1e-5)


def test_scores_of_pairs_equal_the_reference(ranker: LLM) -> None:
    model, tokenizer = reference(ranker, "BertForSequenceClassification")
    seconds = TEXTS[1:]  # transformers takes an empty second text for none
    for firsts, cut in ((TEXTS[:1], None), (TEXTS[:-1], None), (TEXTS[:-1], 12)):
        found = ranker.score(firsts, seconds, use_tqdm=False, truncate_prompt_tokens=cut)
        how: dict[str, Any] = {"truncation": True, "max_length": cut} if cut else {}
        pairs = zip(firsts * 7 if len(firsts) == 1 else firsts, seconds, strict=True)
        with torch.inference_mode():
            wanted = [
                torch.sigmoid(model(**tokenizer(*pair, return_tensors="pt", **how)).logits).item()
                for pair in pairs
            ]
        assert [one.outputs.score for one in found] == pytest.approx(wanted, abs=1e-5)


def test_scores_as_the_model_tells_them(ranker: LLM) -> None:
    params = PoolingParams(task="classify", is_activated=False)
    (plain,) = ranker.score(SHORT, SHORT, use_tqdm=False, pooling_params=params)
    (usual,) = ranker.score(SHORT, SHORT, use_tqdm=False)
    assert 1 / (1 + np.exp(-plain.outputs.score)) == pytest.approx(usual.outputs.score, abs=1e-6)


def test_a_template_writes_the_pair(ranker: LLM) -> None:
    template = (
        "{{ (messages | selectattr('role', 'eq', 'document') | first).content }} of "
        "{{ (messages | selectattr('role', 'eq', 'query') | first).content }}"
    )
    (found,) = ranker.score("dog", "cat", use_tqdm=False, chat_template=template)
    assert list(found.prompt_token_ids) == ranker.tokenizer.encode("cat of dog")


def test_classes_equal_the_reference(classifier: LLM) -> None:
    model, tokenizer = reference(classifier, "BertForSequenceClassification")
    found = classifier.classify(TEXTS, use_tqdm=False)
    with torch.inference_mode():
        for one in found:
            logits = model(**tokenizer(one.prompt, return_tensors="pt")).logits[0]
            wanted = logits.softmax(0).tolist()
            assert one.outputs.probs == pytest.approx(wanted, abs=1e-5)
    assert found[0].outputs.num_classes == 3


def test_rewards(classifier: LLM, tmp_path: Path) -> None:
    (whole,) = classifier.reward(SHORT, use_tqdm=False)
    assert whole.outputs.data.tolist() == classifier.classify(SHORT)[0].outputs.probs
    with opened(write_tiny_bert(tmp_path, num_classes=2, of="Token")) as llm:
        (found,) = llm.reward(SHORT, use_tqdm=False)
        assert found.outputs.data.shape == (5, 2)
        with pytest.raises(RequestError, match="does not do classify; it does token_classify"):
            llm.classify(SHORT)


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda llm: llm.classify(SHORT), "does not do classify"),
        (lambda llm: llm.embed([[]]), "the prompt has no tokens"),
        (lambda llm: llm.embed([[1, 10**6]]), "1000000 is not a valid token id"),
        (lambda llm: llm.embed("\ud800"), "not valid Unicode"),
        (lambda llm: llm.embed(SHORT, truncate_prompt_tokens=0), "must be -1 or at least 1"),
        (lambda llm: llm.embed(SHORT, truncate_prompt_tokens=2), "must be at least 3"),
        (
            lambda llm: llm.embed(SHORT, pooling_params=PoolingParams(task="classify")),
            "the pooling params are for classify, and embed is asked for",
        ),
        (
            lambda llm: llm.embed(SHORT, pooling_params=PoolingParams(task="embed", dimensions=9)),
            "the model was trained for 8, 16",
        ),
        (lambda llm: llm.encode(SHORT, pooling_task="dream"), "not a pooling task"),
        (lambda llm: llm.score(["a", "b"], ["a"]), "2 texts do not pair with 1"),
        (lambda llm: llm.generate(SHORT), "it does not generate"),
    ],
)
def test_wrong_calls_are_refused(embedder: LLM, call: Any, what: str) -> None:
    with pytest.raises(RequestError, match=what):
        call(embedder)
    assert vectors(embedder, SHORT).shape == (1, 16)


def test_numbers_that_are_not_finite_end_their_request_alone(
    sentences: Path, tmp_path: Path
) -> None:
    for file in sentences.iterdir():
        (tmp_path / file.name).symlink_to(file)
    weights = load_file(sentences / "model.safetensors")
    words = weights["embeddings.word_embeddings.weight"].clone()
    poisoned, poison = "mouse", word_tokenizer().token_to_id("mouse")
    words[poison] = float("nan")
    (tmp_path / "model.safetensors").unlink()
    weights["embeddings.word_embeddings.weight"] = words
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with opened(tmp_path) as llm:
        good = llm.tokenizer.encode(SHORT)
        assert poison not in good
        found = llm.embed([good, poisoned, good], use_tqdm=False)
        assert [one.error is None for one in found] == [True, False, True]
        assert found[0].outputs.embedding == found[2].outputs.embedding
        with pytest.raises(RequestFault, match="not finite"):
            _ = found[1].outputs
        scores = llm.score([SHORT], [SHORT, poisoned], use_tqdm=False)
        assert (scores[0].error, scores[0].outputs.score) == (None, pytest.approx(1))
        assert "not finite" in str(scores[1].error)

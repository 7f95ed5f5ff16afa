"""all-MiniLM-L6-v2, served as it is: its published examples, transformers, int8, int4.

Run by `make test-real`; see test_real_models.py.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dovetail import LLM

pytestmark = [pytest.mark.real, pytest.mark.timeout(1200)]
ROOT = Path(__file__).resolve().parents[2]
MOST_TOKENS = 256
QUESTION = "How many people live in London?"
ANSWERS = (
    "Around 9 million people live in London.",
    "London is known for its museums and theatres.",
    "The cat sat on the warm window sill.",
)
WEATHER = (
    "The weather is lovely today.",
    "It's so sunny outside!",
    "He drove to the stadium.",
)
SIMILARITIES = ((1.0, 0.6660, 0.1046), (0.6660, 1.0, 0.1411), (0.1046, 0.1411, 1.0))
"""Of WEATHER. Source: sbert.net, Quickstart, which runs this model on these sentences."""


@pytest.fixture(scope="module")
def folder() -> Path:
    """Return the folder of the model; the test fails where it is not there."""
    if os.environ.get("MODEL"):
        pytest.skip("MODEL names another checkpoint")
    named = os.environ.get("REAL_MODELS")
    assert named, "REAL_MODELS names no folder: run `make test-real`"
    found = Path(named) / "all-minilm-l6-v2"
    assert found.is_dir(), f"{found} is not there: run `make test-real`"
    return found


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    with LLM(str(folder), use_tqdm_on_load=False) as made:
        yield made


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    """Return token ids of texts of 1 to 256 tokens, special ones counted; lengths are mixed."""
    chance = random.Random(5)
    lengths = [*range(1, 33), *range(40, MOST_TOKENS, 9), MOST_TOKENS]
    chance.shuffle(lengths)
    return [[101, *(chance.randrange(1000, 30000) for _ in range(n - 2)), 102][:n] for n in lengths]


@pytest.fixture(scope="module")
def reference(folder: Path, prompts: list[list[int]]) -> np.ndarray:
    """Return transformers' vectors: the mean of the last states, normalized."""
    import transformers

    model = transformers.AutoModel.from_pretrained(folder).eval()
    with torch.inference_mode():
        means = [model(torch.tensor([ids])).last_hidden_state[0].mean(dim=0) for ids in prompts]
    return torch.nn.functional.normalize(torch.stack(means), dim=1).numpy()


def vectors(llm: LLM, prompts: Any) -> np.ndarray:
    return np.array([one.outputs.embedding for one in llm.embed(prompts, use_tqdm=False)])


def test_the_published_similarities(llm: LLM) -> None:
    found = vectors(llm, list(WEATHER))
    assert (found @ found.T).tolist() == [pytest.approx(row, abs=1e-4) for row in SIMILARITIES]


def test_the_answer_is_nearest_to_its_question(llm: LLM) -> None:
    scores = [one.outputs.score for one in llm.score(QUESTION, ANSWERS, use_tqdm=False)]
    assert scores == sorted(scores, reverse=True)
    assert scores[0] > scores[1] + 0.1 > scores[2] + 0.2


def test_equals_transformers_among_64(
    llm: LLM, prompts: list[list[int]], reference: np.ndarray
) -> None:
    chosen = random.Random(1).sample(range(len(prompts)), min(64, len(prompts)))
    found = vectors(llm, [prompts[at] for at in chosen])
    assert np.abs(found - reference[chosen]).max() < 1e-5
    assert (found * reference[chosen]).sum(axis=1).min() > 1 - 1e-5


def test_equals_transformers_alone(
    llm: LLM, prompts: list[list[int]], reference: np.ndarray
) -> None:
    found = np.concatenate([vectors(llm, [one]) for one in prompts])
    assert np.abs(found - reference).max() < 1e-5


def test_longer_texts_are_cut_where_the_model_ends(llm: LLM) -> None:
    long = " ".join([QUESTION, *ANSWERS] * 20)
    (cut,) = llm.embed(long, use_tqdm=False, truncate_prompt_tokens=-1)
    ids = llm.tokenizer.encode(long)
    assert list(cut.prompt_token_ids) == [*ids[: MOST_TOKENS - 1], ids[-1]]


@pytest.fixture(scope="module")
def paragraphs() -> list[str]:
    """Return text as people write it: paragraphs of this repository's documentation."""
    texts = [file.read_text(encoding="utf-8") for file in sorted((ROOT / "docs").rglob("*.md"))]
    found = [" ".join(part.split()) for text in texts for part in text.split("\n\n")]
    plain = [one for one in found if one[:1].isalpha() and 40 < len(one) < 800]
    assert len(plain) >= 200
    return random.Random(2).sample(plain, 200)


@pytest.mark.parametrize(("method", "least"), [("int8", 0.998), ("int4", 0.9)])
def test_quantized(
    folder: Path, llm: LLM, paragraphs: list[str], method: str, least: float
) -> None:
    """The cosine of quantized vectors to float32 ones, the worst of all paragraphs."""
    exact = vectors(llm, paragraphs)
    with LLM(str(folder), quantization=method, use_tqdm_on_load=False) as quantized:
        cosines = (vectors(quantized, paragraphs) * exact).sum(axis=1)
        scores = [one.outputs.score for one in quantized.score(QUESTION, ANSWERS, use_tqdm=False)]
    print(f"{method}: cosine to float32: mean {cosines.mean():.5f}, worst {cosines.min():.5f}")
    assert cosines.min() > least
    assert scores == sorted(scores, reverse=True)

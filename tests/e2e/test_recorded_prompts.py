"""Steps of short prompts, recorded and repeated, give what they give one operator at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dovetail import LLM
from dovetail.runner.replay.recorded import MAX_PROMPT_TOKENS, MAX_PROMPTS
from dovetail_kernels.cpu.library import library, missing_reason
from support.inside import programs_of, recorder_of, runner_of
from support.tiny_encoders import write_tiny_bert

pytestmark = pytest.mark.skipif(library() is None, reason=missing_reason() or "")

LENGTHS = ((9,), (9,), (9,), (4, 5), (1, 7, 1), (5, 4), (3, 1, 2, 3), (9,), (6,), (2, 4), (6,))
"""Of the prompts of one call after the other: 9 tokens are recorded, proven and repeated, and 6."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a BERT whose heads are of a size that the native kernel attends."""
    where = tmp_path_factory.mktemp("bert")
    return write_tiny_bert(where, num_classes=1, num_attention_heads=2)


@contextmanager
def engine(model: str | None, **flags: Any) -> Iterator[tuple[LLM, Any]]:
    with LLM(model, max_model_len=128, use_tqdm_on_load=False, **flags) as llm:
        yield llm, recorder_of(runner_of(llm))


def vectors(llm: LLM) -> list[np.ndarray]:
    found = []
    for number, lengths in enumerate(LENGTHS):
        prompts = [[6 + (7 * number + i) % 20 for i in range(size)] for size in lengths]
        found += [np.array(one.data) for one in llm.encode(prompts, use_tqdm=False)]
    return found


@pytest.mark.parametrize("flags", [{}, {"quantization": "int8"}], ids=["float32", "int8"])
def test_vectors_of_an_encoder(folder: Path, flags: dict[str, Any]) -> None:
    flags = {"runner": "pooling", "convert": "embed", "max_num_seqs": 8, **flags}
    with engine(str(folder), enforce_eager=True, **flags) as (llm, recorded):
        assert recorded is None
        wanted = vectors(llm)
    with engine(str(folder), **flags) as (llm, recorded):
        found = vectors(llm)
        assert recorded.reason is None
        assert recorded.sizes == {(6, False), (9, False)}
    assert len(found) == len(wanted) == sum(map(len, LENGTHS))
    assert all(np.array_equal(one, other) for one, other in zip(found, wanted, strict=True))


def test_vectors_of_a_decoder() -> None:
    """A prompt that shares its beginning with an earlier one is computed from there."""
    flags = {"runner": "pooling", "convert": "embed", "max_num_seqs": 8, "block_size": 16}
    shared = [5 + i % 40 for i in range(32)]
    told = []
    for is_eager in (True, False):
        with engine(None, enforce_eager=is_eager, **flags) as (llm, recorded):
            found = vectors(llm)
            for end in range(5):
                (one,) = llm.encode([[*shared, 9 + end]], use_tqdm=False)
                found.append(np.array(one.data))
                assert one.num_cached_tokens == (32 if end else 0)
            told.append(found)
            if not is_eager:
                assert recorded.reason is None
                assert {(1, False), (6, False), (9, False)} <= recorded.sizes
    assert all(np.array_equal(one, other) for one, other in zip(*told, strict=True))


def test_pairs_of_texts_and_single_ones(folder: Path) -> None:
    """The tokens of a second text are marked anew in each step, also where none has one."""
    told = []
    for is_eager in (True, False):
        with engine(str(folder), enforce_eager=is_eager) as (llm, recorded):
            scores = []
            for _ in range(4):
                for one, other in (("the dog", "a cat sleeps"), ("the dog runs", "a cat")):
                    (pair,) = llm.score(one, other, use_tqdm=False)
                    (alone,) = llm.classify([f"{one} {other} tree"], use_tqdm=False)
                    scores += [pair.outputs.score, *alone.outputs.probs]
            told.append(scores)
            assert is_eager or recorded.sizes == {(8, False)}
    assert told[0] == told[1]
    assert len({*told[0]}) == 4, "all differ but those of the same texts"


def test_large_steps_are_not_recorded(folder: Path) -> None:
    with engine(str(folder), convert="embed", max_num_seqs=32) as (llm, recorded):
        seen = set(programs_of(recorded))
        for _ in range(3):
            llm.encode([[7]] * (MAX_PROMPTS + 1), use_tqdm=False)
            llm.encode([[7] * 100, [8] * (MAX_PROMPT_TOKENS - 99)], use_tqdm=False)
        assert recorded.reason is None
        assert set(programs_of(recorded)) == seen

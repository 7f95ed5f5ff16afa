"""Native sampling against its definition, against torch's own functions, and against itself."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest
import torch

from dovetail_kernels.check import check_case
from dovetail_kernels.cpu import library as libraries
from dovetail_kernels.op import Case
from dovetail_kernels.sample import OP
from dovetail_kernels.sample.cases import LARGE_VOCAB, logits_of
from dovetail_kernels.sample.native import Logprobs, NativeSampler, Tables, logprobs_of
from dovetail_kernels.sample.reference import reference

LOADED = libraries.library()
ISAS = LOADED.isas() if LOADED is not None else []
pytestmark = pytest.mark.skipif(LOADED is None, reason="the native library is not there")
CPU = torch.device("cpu")


@cache
def on(isa: str) -> libraries.Library:
    assert LOADED is not None
    return libraries.Library(LOADED.path, isa)


def random_tables(count: int, seed: int, *, greedy: bool = True) -> Tables:
    """Return rows whose wishes differ in everything but penalties."""
    rng = np.random.default_rng(seed)
    tables = Tables(count)
    warmth = rng.choice([0.0 if greedy else 1.0, 0.1, 0.7, 1.0, 3.0, 1e-6], count)
    tables.inverse_temperature[:] = np.divide(1.0, warmth, np.zeros(count), where=warmth > 0)
    tables.top_k[:] = rng.choice([0, 0, 1, 2, 20, 63, 700, 10**9], count)
    tables.top_p[:] = rng.choice([1.0, 1.0, 0.95, 0.5, 1e-6, 0.999999], count)
    tables.least[:] = np.log(rng.choice([1e-300, 0.01, 0.3, 1.0], count))
    tables.least[rng.random(count) < 0.6] = -np.inf
    tables.seed[:] = rng.integers(0, 1 << 63, count)
    return tables


def draw(
    isa: str, tables: Tables, logits: torch.Tensor, rows: list[int] | None = None
) -> list[int]:
    """Return the tokens that rows (all: in order) draw at the position of their number."""
    numbers = np.arange(len(logits)) if rows is None else np.array(rows)
    sampler = NativeSampler(tables, on(isa))
    sampler(logits, numbers, numbers)
    return sampler.tokens[: len(numbers)].tolist()


def defined(tables: Tables, logits: torch.Tensor) -> list[int]:
    """Return what the definition draws."""
    count = len(logits)
    return reference(
        logits,
        torch.from_numpy(tables.inverse_temperature),
        torch.from_numpy(tables.top_k),
        torch.from_numpy(tables.top_p),
        torch.from_numpy(np.exp(tables.least.astype(np.float64))),
        torch.from_numpy(tables.seed.view(np.int64)),
        torch.arange(count),
    ).tolist()


@pytest.mark.parametrize("case", OP.cases(), ids=lambda case: case.name)
def test_cases(case: Case) -> None:
    assert check_case(OP, case, "native", CPU) is None


@pytest.mark.parametrize("kind", ["normal", "ties", "one", "model"])
@pytest.mark.parametrize("vocab", [50, 1000])
def test_many_wishes_draw_as_defined_on_every_isa(vocab: int, kind: str) -> None:
    logits, tables = logits_of(kind, 150, vocab), random_tables(150, vocab)
    wanted = defined(tables, logits)
    for isa in ISAS:
        assert draw(isa, tables, logits) == wanted


@pytest.mark.parametrize("kind", ["normal", "ties", "model"])
def test_large_vocabulary_draws_as_defined_on_every_isa(kind: str) -> None:
    logits, tables = logits_of(kind, 12, LARGE_VOCAB), random_tables(12, 7)
    wanted = defined(tables, logits)
    for isa in ISAS:
        assert draw(isa, tables, logits) == wanted


@pytest.mark.parametrize("isa", ISAS)
def test_a_row_draws_the_same_alone_in_any_batch_and_on_any_number_of_threads(isa: str) -> None:
    logits, tables = logits_of("model", 40, 3000), random_tables(40, 1)
    together = draw(isa, tables, logits)
    alone = [draw(isa, tables, logits[i : i + 1], [i])[0] for i in range(40)]
    backwards = draw(isa, tables, logits.flip(0).contiguous(), list(range(40))[::-1])
    assert together == alone == backwards[::-1]
    threads = on(isa).num_threads()
    try:
        on(isa).set_threads(1)
        assert draw(isa, tables, logits) == together
    finally:
        on(isa).set_threads(threads)


@pytest.mark.parametrize("isa", ISAS)
def test_all_tokens_equal(isa: str) -> None:
    """Every bound keeps all ties, and a hundred thousand of them cost no search."""
    logits, tables = torch.full((8, LARGE_VOCAB), -3.5), random_tables(8, 3, greedy=False)
    tables.top_k[:], tables.top_p[:] = 5, 0.3
    drawn = draw(isa, tables, logits)
    assert drawn == defined(tables, logits) and max(drawn) > 1000


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_rows_that_are_not_finite_are_told(isa: str, bad: float) -> None:
    logits = logits_of("normal", 200, 300)
    for row in range(100):
        logits[row, row * 3 % 300] = bad
    logits[100] = -math.inf
    tables = random_tables(200, 5)
    tables.num_top[:] = 3
    sampler = NativeSampler(tables, on(isa))
    sampler(logits, np.arange(200), np.arange(200), logprobs_top=3)
    assert not np.isfinite(sampler.best[:101]).any() and np.isfinite(sampler.best[101:]).all()
    assert np.array_equal(sampler.best, sampler.raw_best, equal_nan=True)
    assert not sampler.tokens[:101].any() and sampler.best[100] == -math.inf


@pytest.mark.parametrize("isa", ISAS)
def test_draws_follow_the_distribution(isa: str) -> None:
    """Chi-square over 20 tokens, 19 degrees of freedom: 43.8 is p = 0.001."""
    count, logits = 20_000, torch.linspace(-2, 2, 20)
    tables = Tables(count)
    tables.inverse_temperature[:] = 0.5
    tables.seed[:] = 11
    found = np.bincount(draw(isa, tables, logits.expand(count, -1).contiguous()), minlength=20)
    wanted = (logits * 0.5).double().softmax(dim=0).numpy() * count
    assert ((found - wanted) ** 2 / wanted).sum() < 43.8


def penalised(tables: Tables, seen: list[list[int]]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Give rows penalties over `seen` ids, drawn 0, 1, 2, .. times; return the arrays."""
    kept = []
    for row, ids in enumerate(seen):
        room = np.zeros(len(ids) + 4, dtype=np.int32)
        room[: len(ids)] = ids
        counts = np.zeros(len(room), dtype=np.float32)
        counts[: len(ids)] = np.arange(len(ids))
        tables.seen_ids[row], tables.seen_counts[row] = room.ctypes.data, counts.ctypes.data
        tables.num_seen[row] = len(ids)
        kept.append((room, counts))
    tables.repetition[:], tables.frequency[:], tables.presence[:] = 1.3, 0.25, -0.5
    return kept


@pytest.mark.parametrize("isa", ISAS)
def test_penalties(isa: str) -> None:
    logits = logits_of("normal", 3, 400)
    before, changed = logits.clone(), logits.clone()
    tables, seen = Tables(3), [[5, 7, 9], list(range(0, 400, 2)), []]
    kept = penalised(tables, seen)
    tables.num_top[:] = 2
    for row, ids in enumerate(seen):
        for count, token in enumerate(ids):
            value = changed[row, token]
            value = value / 1.3 if value > 0 else value * 1.3
            changed[row, token] = value - (0.25 * count - 0.5 * (count > 0))
    wanted = changed.argmax(dim=1).tolist()
    sampler = NativeSampler(tables, on(isa))
    found = sampler(logits, np.arange(3), np.arange(3), logprobs_top=2)
    assert found is not None
    assert sampler.tokens.tolist() == wanted and torch.equal(logits, before)
    assert torch.allclose(torch.from_numpy(sampler.best), changed.amax(dim=1))
    raw = before.double().log_softmax(dim=1)
    assert found.logprob.tolist() == pytest.approx(
        [raw[i, t].item() for i, t in enumerate(wanted)], abs=1e-6
    )
    for (ids, counts), token, old in zip(kept, wanted, seen, strict=True):
        place = old.index(token) if token in old else len(old)
        assert ids[place] == token and counts[place] == (place if token in old else 0) + 1


def check_logprobs(
    found: Logprobs, logits: torch.Tensor, tokens: list[int], sizes: list[int]
) -> None:
    """Compare with log_softmax and a stable sort."""
    wanted = logits.double().log_softmax(dim=1)
    for i, (token, size) in enumerate(zip(tokens, sizes, strict=True)):
        order = logits[i].sort(descending=True, stable=True).indices[:size].tolist()
        assert found.top_ids[i, :size].tolist() == order
        assert found.logprob[i] == pytest.approx(wanted[i, token].item(), abs=1e-6)
        assert found.rank[i] == 1 + int((logits[i] > logits[i, token]).sum())
        assert found.top_logprobs[i, :size].tolist() == pytest.approx(
            wanted[i, order].clamp(min=-9999).tolist(), abs=1e-6
        )


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("vocab", [50, 1000, LARGE_VOCAB])
@pytest.mark.parametrize("kind", ["normal", "ties", "model"])
def test_logprobs(isa: str, vocab: int, kind: str) -> None:
    logits = logits_of(kind, 5, vocab) + 4.0
    tokens, sizes = [0, 1, 49, vocab - 1, vocab // 2], [0, 1, 5, 20, 50]
    found = logprobs_of(logits, np.array(tokens), np.array(sizes), on(isa))
    check_logprobs(found, logits, tokens, sizes)
    alone = logprobs_of(logits[3:4], np.array(tokens[3:4]), np.array([20]), on(isa))
    assert alone.logprob[0] == found.logprob[3]
    assert alone.top_logprobs[0].tolist() == found.top_logprobs[3, :20].tolist()


@pytest.mark.parametrize("isa", ISAS)
def test_logprobs_of_impossible_tokens_have_the_floor(isa: str) -> None:
    logits = torch.full((1, 300), -math.inf)
    logits[0, 77], logits[0, 78] = 5.0, -0.0
    found = logprobs_of(logits, np.array([3]), np.array([4]), on(isa))
    assert found.logprob[0] == -9999.0 and found.rank[0] == 3
    assert found.top_ids[0].tolist() == [77, 78, 0, 1]
    assert found.top_logprobs[0, 2:].tolist() == [-9999.0, -9999.0]

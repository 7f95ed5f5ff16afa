"""Each sampler on 1,000 random rows, in one call, against transformers' processor of the same name,
or the formula of its source in plain numpy."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from transformers.generation import logits_process as theirs

from dovetail_plugins.logits_processors.samplers.cutoffs import EpsilonCutoff, EtaCutoff
from dovetail_plugins.logits_processors.samplers.dry import Dry
from dovetail_plugins.logits_processors.samplers.dynamic_temperature import DynamicTemperature
from dovetail_plugins.logits_processors.samplers.encoder_repetition_penalty import (
    EncoderRepetitionPenalty,
)
from dovetail_plugins.logits_processors.samplers.logit_smoothing import LogitSmoothing
from dovetail_plugins.logits_processors.samplers.no_repeat_ngram import NoRepeatNgram
from dovetail_plugins.logits_processors.samplers.repeat_last_n import RepeatLastN, moved
from dovetail_plugins.logits_processors.samplers.tail_free import TailFree
from dovetail_plugins.logits_processors.samplers.top_a import TopA
from dovetail_plugins.logits_processors.samplers.typical import Typical
from dovetail_plugins.logits_processors.samplers.xtc import Xtc
from dovetail_plugins.logits_processors.top_n_sigma import TopNSigma
from support.sampler_rows import (
    COUNT,
    VOCAB,
    kept,
    processor,
    random_ids,
    random_logits,
    row,
    shaped,
)

NO_IDS = torch.zeros((1, 1), dtype=torch.long)
Warper = Callable[[float], Any]


def numbers(low: float, high: float, seed: int = 3) -> list[float]:
    return np.random.default_rng(seed).uniform(low, high, size=COUNT).tolist()


def softmax(line: np.ndarray) -> np.ndarray:
    weight = np.exp(line.astype(np.float64) - line.max())
    return weight / weight.sum()


@pytest.mark.parametrize(
    ("cls", "field", "unit", "low", "high", "warper"),
    [
        (Typical, "typical_p", 1.0, 0.05, 0.99, theirs.TypicalLogitsWarper),
        (EpsilonCutoff, "epsilon_cutoff", 1e-4, 1, 2000, theirs.EpsilonLogitsWarper),
        (EtaCutoff, "eta_cutoff", 1e-4, 1, 2000, theirs.EtaLogitsWarper),
    ],
)
def test_filters_of_transformers(
    cls: Any, field: str, unit: float, low: float, high: float, warper: Warper
) -> None:
    logits, values = random_logits(), numbers(low, high)
    ours = shaped(cls, logits, [{field: value} for value in values])
    wanted = torch.cat(
        [
            warper(v * unit)(NO_IDS, line[None].double())
            for v, line in zip(values, logits, strict=True)
        ]
    )
    assert kept(ours) == kept(wanted)
    assert torch.equal(ours[ours.isfinite()], logits[ours.isfinite()])


def top_a(p: np.ndarray, a: float) -> np.ndarray:
    return p >= a * p.max() ** 2


def tail_free(p: np.ndarray, z: float) -> np.ndarray:
    order = np.argsort(-p, kind="stable")
    curve = np.abs(np.diff(np.diff(p[order])))
    share = np.cumsum(curve / curve.sum())
    goes = np.concatenate([[False], share > z, [True]])
    is_left = np.empty(len(p), dtype=bool)
    is_left[order] = ~goes
    return is_left


def top_n_sigma(line: np.ndarray, n: float) -> np.ndarray:
    finite = line[np.isfinite(line)].astype(np.float64)
    return line >= finite.max() - n * finite.std()


@pytest.mark.parametrize(
    ("cls", "field", "low", "high", "rule"),
    [
        (TopA, "top_a", 0.01, 1.0, lambda line, v: top_a(softmax(line), v)),
        (TailFree, "tfs_z", 0.05, 0.99, lambda line, v: tail_free(softmax(line), v)),
        (TopNSigma, "top_n_sigma", 0.1, 4.0, top_n_sigma),
    ],
)
def test_filters_by_formula(cls: Any, field: str, low: float, high: float, rule: Any) -> None:
    logits, values = random_logits(), numbers(low, high)
    ours = kept(shaped(cls, logits, [{field: value} for value in values]))
    for found, line, value in zip(ours, logits.numpy(), values, strict=True):
        wanted = rule(line, value) & np.isfinite(line)
        wanted[line.argmax()] = True
        assert found == np.flatnonzero(wanted).tolist()


def test_exclude_top_choices() -> None:
    logits, bounds = random_logits(), numbers(0.001, 0.3)
    always = shaped(Xtc, logits, [{"xtc_probability": 1, "xtc_threshold": b} for b in bounds])
    for found, line, bound in zip(kept(always), logits.numpy(), bounds, strict=True):
        p = softmax(line)
        likely = np.flatnonzero(p >= bound)
        goes = sorted(likely, key=lambda i: -p[i])[:-1] if len(likely) > 1 else []
        assert found == [i for i in np.flatnonzero(np.isfinite(line)).tolist() if i not in goes]
    half = [{"xtc_probability": 0.5, "xtc_threshold": 0.001}] * COUNT
    changed = (shaped(Xtc, logits, half) != logits).any(dim=1) & (always != logits).any(dim=1)
    share = float(changed.sum() / (always != logits).any(dim=1).sum())
    assert 0.44 < share < 0.56  # four standard deviations, of a draw that is fixed by the seeds


def test_logits_fall_with_square_and_cube() -> None:
    logits, factors, curves = random_logits(), numbers(0.05, 3), numbers(1, 6, seed=4)
    pairs = list(zip(factors, curves, strict=True))
    extras = [{"smoothing_factor": f, "smoothing_curve": c} for f, c in pairs]
    ours = shaped(LogitSmoothing, logits, extras).numpy()
    for found, line, (f, c) in zip(ours, logits.numpy().astype(np.float64), pairs, strict=True):
        d = line - line.max()
        with np.errstate(invalid="ignore"):
            wanted = -((3 - c) / 2 * f * d**2) + (c - 1) / 2 * f * d**3 + line.max()
        wanted[~np.isfinite(line)] = -np.inf
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


def test_the_temperature_follows_the_entropy() -> None:
    logits, ranges, powers = random_logits(), numbers(0.05, 2), numbers(0.3, 3, seed=4)
    pairs = list(zip(ranges, powers, strict=True))
    extras = [{"dynatemp_range": r, "dynatemp_exponent": e} for r, e in pairs]
    ours = shaped(DynamicTemperature, logits, extras, temperature=0.9)
    for found, line, (spread, power) in zip(ours.numpy(), logits.numpy(), pairs, strict=True):
        p = softmax(line)
        p = p[p > 0]
        share = -(p * np.log(p)).sum() / math.log(np.isfinite(line).sum())
        low, high = max(0.0, 0.9 - spread), 0.9 + spread
        temperature = low + (high - low) * share**power
        np.testing.assert_allclose(
            softmax(found / 0.9), softmax(line.astype(np.float64) / temperature), atol=2e-6
        )


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_no_run_of_tokens_comes_twice(size: int) -> None:
    logits, ids = random_logits(vocab=40), random_ids(COUNT, 24, 40)
    texts = [(line[:15], line[15:].tolist()) for line in ids]
    ours = shaped(NoRepeatNgram, logits, [{"no_repeat_ngram_size": size}] * COUNT, texts)
    rule = theirs.NoRepeatNGramLogitsProcessor(size)
    assert torch.equal(ours, rule(torch.from_numpy(ids), logits.clone()))


def test_the_prompt_is_more_likely() -> None:
    logits, ids, values = random_logits(), random_ids(COUNT, 20, VOCAB), numbers(0.5, 3)
    extras = [{"encoder_repetition_penalty": value} for value in values]
    ours = shaped(EncoderRepetitionPenalty, logits, extras, [(line, [7]) for line in ids])
    for found, line, prompt, value in zip(ours, logits, ids, values, strict=True):
        rule = theirs.EncoderRepetitionPenaltyLogitsProcessor(value, torch.from_numpy(prompt[None]))
        torch.testing.assert_close(found, rule(NO_IDS, line[None].clone())[0])


@pytest.mark.parametrize("window", [1, 5, 17, 100])
def test_penalties_of_a_window(window: int) -> None:
    logits, ids = random_logits(), random_ids(COUNT, 24, 40)
    values = numbers(1.01, 2)
    made, ours = processor(RepeatLastN), logits.clone()
    for number, (line, value) in enumerate(zip(ids, values, strict=True)):
        own = {"repetition_penalty": value, "frequency_penalty": 0.3, "presence_penalty": 0.2}
        tokens = row(number, {"repeat_last_n": window}, line[:15], line[15:].tolist(), **own)
        params = RepeatLastN.prepared(tokens.params, None)  # type: ignore[arg-type]
        assert params == moved(tokens.params) and params.repetition_penalty == 1.0
        made.add_row(row(number, params.extra_args, line[:15], line[15:].tolist()))
    made.apply(ours, [(number, number) for number in range(COUNT)])
    for found, line, text, value in zip(ours, logits, ids, values, strict=True):
        seen = torch.from_numpy(text[-window:])[None]
        wanted = theirs.RepetitionPenaltyLogitsProcessor(value)(seen, line[None].clone())[0]
        counts = torch.bincount(seen[0], minlength=VOCAB)
        torch.testing.assert_close(found, wanted - 0.3 * counts - 0.2 * (counts > 0))


def dry(ids: list[int], breakers: set[int], allowed: int) -> dict[int, int]:
    """Return the length that each token would continue, by comparing all with all."""
    found: dict[int, int] = {}
    for end in range(len(ids) - 1):
        length = 0
        while (
            length <= end
            and ids[end - length] == ids[len(ids) - 1 - length]
            and ids[end - length] not in breakers
        ):
            length += 1
        if length >= allowed and ids[end + 1] not in breakers:
            found[ids[end + 1]] = max(found.get(ids[end + 1], 0), length)
    return found


@pytest.mark.parametrize("allowed", [1, 2, 4])
@pytest.mark.parametrize("window", [-1, 12])
def test_what_continues_a_repetition(allowed: int, window: int) -> None:
    logits, ids = random_logits(vocab=40), random_ids(COUNT, 30, 12)
    fields = {
        "dry_multiplier": 0.8, "dry_base": 1.5, "dry_allowed_length": allowed,
        "dry_penalty_last_n": window, "dry_sequence_breakers": [":"],
    }  # fmt: skip
    made, live = processor(Dry, 40), [line[18:20].tolist() for line in ids]
    for number, line in enumerate(ids):
        made.add_row(row(number, fields, line[:18], live[number]))
    for upto in range(20, 31):
        ours = logits.clone()
        made.apply(ours, [(number, number) for number in range(COUNT)])
        for found, line, text in zip(ours, logits, ids, strict=True):
            seen = text[:upto].tolist() if window < 0 else text[:upto].tolist()[-window:]
            wanted = line.clone()
            for token_id, length in dry(seen, {3, 4}, allowed).items():
                wanted[token_id] -= 0.8 * 1.5 ** (length - allowed)
            torch.testing.assert_close(found, wanted)
        for output, text in zip(live, ids, strict=True):
            output += text[upto : upto + 1].tolist()

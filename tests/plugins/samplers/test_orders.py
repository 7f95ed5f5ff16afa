"""The order of samplers is the request's: in the words of three servers, against single steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from dovetail import registry
from dovetail.errors import RequestError
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.logits import LogitsProcessor, RowTokens
from dovetail.sampling.sampler import Sampler
from dovetail_plugins.logits_processors.samplers._sampler import ORDERED
from support.sampler_rows import processor, random_logits

VOCAB = 300
DRAWS = 4000
FULL: dict[str, Any] = {"temperature": 2.0, "top_k": 40, "top_p": 0.8, "min_p": 0.05}


def classes() -> dict[str, type[LogitsProcessor]]:
    kind = "logits_processor"
    return {entry.name: registry.load(kind, entry.id) for entry in registry.entries(kind)}


def prepared(params: SamplingParams) -> SamplingParams:
    wanted = [cls for cls in classes().values() if cls.wants(params)]
    for cls in wanted:
        cls.verify(params, VOCAB)
    for cls in classes().values():
        if cls.wants(params):
            params = cls.prepared(params, None)  # type: ignore[arg-type]
    return params


def sampler_of(*ready: SamplingParams, vocab: int = VOCAB) -> Sampler:
    """Return a sampler with a row for each prepared request; a row's number is its seed."""
    sampler = Sampler(len(ready), {name: processor(cls, vocab) for name, cls in classes().items()})
    for number, params in enumerate(ready):
        tokens = RowTokens(
            row=number, params=params, prompt_ids=[1, 2, 3], output_ids=[4, 4], seed=number
        )
        sampler.add_row(tokens, seed=number)
    return sampler


def drawn(params: SamplingParams, line: torch.Tensor, count: int = 200) -> list[int]:
    """Return many rows' draws from the same logits."""
    sampler = sampler_of(*[prepared(params)] * count, vocab=len(line))
    logits = line.repeat(count, 1)
    draws = sampler.sample(logits.clone(), np.arange(count), np.full(count, 2), logits.clone)
    assert not draws.faults
    return draws.token_ids


def assert_drawn_as(found: list[int], wanted: np.ndarray) -> None:
    """Hold draws to a distribution by a chi-square test, at four standard deviations."""
    counts = np.bincount(found, minlength=len(wanted))
    assert (counts[wanted == 0] == 0).all()
    expected = wanted[wanted > 0] * len(found)
    chi = ((counts[wanted > 0] - expected) ** 2 / expected).sum()
    free = int((wanted > 0).sum()) - 1
    assert chi < free + 4 * (2 * free) ** 0.5 + 4


def by_hand(line: torch.Tensor, order: str, params: dict[str, Any]) -> np.ndarray:
    """Return the distribution after steps named by llama.cpp's letters."""
    x = line.numpy().astype(np.float64)
    for step in order:
        p = np.exp(x - x.max())
        p /= p.sum()
        ranked = np.sort(p)[::-1]
        if step == "t":
            x = x / params["temperature"]
            continue
        bound = {
            "k": ranked[params["top_k"] - 1],
            "p": ranked[int((np.cumsum(ranked) < params["top_p"]).sum())],
            "m": params["min_p"] * ranked[0],
        }[step]
        x = np.where(p >= bound, x, -np.inf)
    p = np.exp(x - x.max())
    return p / p.sum()


@pytest.mark.parametrize("order", ["kpmt", "tmkp", "kptm", "ptmk", "mtpk", "mkpt"])
def test_draws_follow_the_order(order: str) -> None:
    line = random_logits(1, 40, seed=5)[0]
    wanted = by_hand(line, order, FULL)
    found = drawn(SamplingParams(**FULL, extra_args={"samplers": order}), line, DRAWS)
    assert_drawn_as(found, wanted)


def test_draws_of_some_samplers() -> None:
    """Their distributions by hand, from twelve tokens."""
    line = torch.tensor([3.0, 2.8, 2.0, 1.9, 1.5, 1.0, 0.5, 0.0, -0.5, -1.0, -2.0, -3.0])
    p = np.exp(line.numpy().astype(np.float64))
    p /= p.sum()
    fields: dict[str, float] = {"xtc_probability": 0.4, "xtc_threshold": 0.1}
    without = np.where(p > p[3], 0.0, p)  # four tokens are likely; the least of them stays
    found = drawn(SamplingParams(extra_args=fields), line, DRAWS)
    assert_drawn_as(found, 0.6 * p + 0.4 * without / without.sum())
    far = 3.0 - line.numpy().astype(np.float64)
    smooth = np.exp(-0.5 * far**2)
    found = drawn(SamplingParams(extra_args={"smoothing_factor": 0.5}), line, DRAWS)
    assert_drawn_as(found, smooth / smooth.sum())
    near = 5 - 10 * (np.abs(p - 0.2) / 0.3) ** 2 / (1 + np.abs(p - 0.2) / 0.3)
    found = drawn(SamplingParams(extra_args={"adaptive_target": 0.2}), line, DRAWS)
    assert_drawn_as(found, np.exp(near) / np.exp(near).sum())


def test_filters_before_the_temperature_keep_less() -> None:
    line = random_logits(1, 40, seed=5)[0]
    warm: dict[str, Any] = {"temperature": 4.0, "min_p": 0.3}
    after = set(drawn(SamplingParams(**warm), line))
    before = set(drawn(SamplingParams(**warm, extra_args={"temperature_last": True}), line))
    best = line.max()
    assert all(line[i] >= best + np.log(0.3) for i in before)
    assert before < after


WAYS: Sequence[dict[str, Any]] = (
    {"samplers": ["penalties", "dry", "top_k", "top_p", "min_p", "temperature"]},
    {"samplers": "penalties;dry;top-k;nucleus;min-p;temp"},
    {"samplers": "edkpmt"},
    {"sampler_priority": ["top_k", "top_p", "min_p", "temperature"]},
    {"sampler_priority": "top_k\ntop_p, min_p\ntemperature"},
    {"sampler_order": [0, 2, 5]},
    {"sampler_order": [6, 0, 1, 2, 3, 4, 5]},
)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: str(way)[:40])
def test_one_order_in_many_words(way: dict[str, Any]) -> None:
    line = random_logits(1, seed=8)[0]
    plain = drawn(SamplingParams(**FULL, extra_args={"samplers": "kpmt"}), line)
    assert drawn(SamplingParams(**FULL, extra_args=way), line) == plain
    assert drawn(SamplingParams(**FULL), line) != plain


def test_an_order_that_changes_nothing_costs_nothing() -> None:
    """Then the sampler's own steps, and kernels, do it."""
    same = SamplingParams(temperature=0.7, top_k=5, extra_args={"samplers": "edskypmxt"})
    assert ORDERED in prepared(same).extra_args  # the temperature comes after top-k
    usual = SamplingParams(temperature=0.7, top_k=5, extra_args={"samplers": "etk"})
    ready = prepared(usual)
    assert ready.extra_args == {} and (ready.temperature, ready.top_k) == (0.7, 5)
    off = prepared(SamplingParams(**FULL, extra_args={"samplers": "k", "typical_p": 0.5}))
    assert off == msgspec.structs.replace(SamplingParams(), top_k=40)
    window = {"samplers": "k", "repeat_last_n": 5}
    off = prepared(SamplingParams(repetition_penalty=1.5, top_k=40, extra_args=window))
    assert (off.repetition_penalty, off.top_k) == (1.0, 40)
    assert off.extra_args == {"repeat_last_n": 5}
    for keep in (0, 1):
        assert prepared(SamplingParams(**FULL, extra_args={"min_keep": keep})).top_k == 40


def test_a_least_number_of_tokens() -> None:
    line = torch.arange(40).float() * 3
    tight: dict[str, Any] = {"temperature": 100.0, "top_p": 0.01, "min_p": 0.99}
    assert len(set(drawn(SamplingParams(**tight), line))) == 1
    for keep in (2, 7):
        fields: dict[str, Any] = {"min_keep": keep, "samplers": ["top_p", "min_p", "temperature"]}
        assert set(drawn(SamplingParams(**tight, extra_args=fields), line)) == set(
            range(40 - keep, 40)
        )
    fields = {"min_keep": 5, "top_a": 1.0, "typical_p": 0.01, "tfs_z": 0.0}
    warm = SamplingParams(temperature=100.0, extra_args=fields)
    assert len(set(drawn(warm, line))) >= 5


def test_greedy_requests_take_the_best_that_is_left() -> None:
    line = torch.arange(40).float()
    cut = {"samplers": ["xtc", "temperature"], "xtc_probability": 1, "xtc_threshold": 0.2}
    assert set(drawn(SamplingParams(temperature=0.0, extra_args=cut), line, 20)) == {38}
    late = cut | {"samplers": ["temperature", "xtc"]}
    assert set(drawn(SamplingParams(temperature=0.0, extra_args=late), line, 20)) == {39}


DRY = {"dry_multiplier": 3.0, "dry_allowed_length": 1, "dry_sequence_breakers": []}
PENALTIES: dict[str, Any] = {
    "repetition_penalty": 1.5, "frequency_penalty": 0.4, "presence_penalty": 0.3,
}  # fmt: skip


@pytest.mark.parametrize("extra", [DRY, DRY | {"samplers": "edkypmt"}, DRY | {"min_keep": 2}])
def test_penalties_come_before_dry(extra: dict[str, Any]) -> None:
    """After the prompt 1 2 3 and the answer 4 4, token 4 would repeat itself."""
    line = torch.tensor([0.5, 1.0, -1.0, 2.0, 6.9, 1.0])
    p = line.numpy().astype(np.float64)
    for seen in (1, 2, 3, 4):
        p[seen] = p[seen] / 1.5 if p[seen] > 0 else p[seen] * 1.5
    p[4] -= 2 * 0.4 + 0.3 + 3.0
    wanted = np.exp(p) / np.exp(p).sum()
    params = SamplingParams(**PENALTIES, extra_args=extra)
    assert_drawn_as(drawn(params, line, DRAWS), wanted)
    greedy = SamplingParams(**PENALTIES, temperature=0.0, extra_args=extra)
    assert set(drawn(greedy, line, 3)) == {int(wanted.argmax())}


@pytest.mark.parametrize("name", [*PENALTIES, None])
def test_penalties_that_move_stay_what_they_are(name: str | None) -> None:
    line = random_logits(1, 40, seed=2)[0]
    chosen = {name: PENALTIES[name]} if name else PENALTIES
    plain = drawn(SamplingParams(**chosen), line)
    idle = DRY | {"dry_allowed_length": 30}
    assert drawn(SamplingParams(**chosen, extra_args=idle), line) == plain
    assert drawn(SamplingParams(**chosen, extra_args={"temperature_last": True}), line) == plain
    assert drawn(SamplingParams(**chosen, extra_args={"repeat_last_n": -1}), line) == plain
    assert drawn(SamplingParams(**chosen, extra_args={"repeat_last_n": 0}), line) != plain


def test_rows_with_other_orders_share_a_step() -> None:
    lines = random_logits(6, seed=11)
    orders: list[dict[str, Any]] = [
        {"samplers": "kpmt"}, {"samplers": "tkp"}, {}, {"temperature_last": True},
        {"samplers": "ptk", "xtc_probability": 0.5}, {"xtc_probability": 0.5},
    ]  # fmt: skip
    ready = [prepared(SamplingParams(**FULL, extra_args=extra)) for extra in orders]
    together, alone = sampler_of(*ready), sampler_of(*ready)
    for position in range(20):
        positions = np.full(6, position)
        draws = together.sample(lines.clone(), np.arange(6), positions, lines.clone)
        for number in range(6):
            line = lines[number : number + 1]
            one = alone.sample(line.clone(), np.array([number]), positions[:1], line.clone)
            assert one.token_ids[0] == draws.token_ids[number]


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"samplers": ["mirror"]}, "samplers"),
        ({"samplers": "q"}, "samplers"),
        ({"samplers": ["top_k", "top-k"]}, "samplers"),
        ({"samplers": 5}, "samplers"),
        ({"samplers": [["top_k"]]}, "samplers"),
        ({"sampler_priority": ["typ_p"]}, "sampler_priority"),
        ({"sampler_order": [0, 9]}, "sampler_order"),
        ({"sampler_order": [True]}, "sampler_order"),
        ({"sampler_order": "0123"}, "sampler_order"),
        ({"temperature_last": 3}, "temperature_last"),
        ({"min_keep": -1}, "min_keep"),
        ({"min_keep": 1.5}, "min_keep"),
        ({"samplers": "kt", "sampler_order": [0]}, "sampler_order"),
    ],
)
def test_wrong_orders_are_refused(fields: dict[str, Any], where: str) -> None:
    with pytest.raises(RequestError) as caught:
        prepared(SamplingParams(extra_args=fields))
    assert caught.value.where == where


def fields_of_samplers() -> list[tuple[str, Any, Any]]:
    found: list[tuple[str, Any, Any]] = []
    for cls in classes().values():
        for name, setting in getattr(cls, "settings", {}).items():
            for field in (name, *setting.others):
                found += [(field, cls, wrong) for wrong in ("x", [1], True, float("nan"))]
                found += [(field, cls, setting.high * 2 + 1)]
    return found


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(("field", "cls", "wrong"), fields_of_samplers())
def test_wrong_settings_are_refused_by_name(field: str, cls: Any, wrong: Any) -> None:
    with pytest.raises(RequestError) as caught:
        prepared(SamplingParams(repetition_penalty=1.2, extra_args={field: wrong}))
    assert caught.value.where == field


NEUTRAL = {
    "dry_multiplier": 0, "dry_base": 1.75, "dry_allowed_length": 2, "dry_penalty_last_n": -1,
    "dry_range": 0, "dry_sequence_breakers": '["\\n", ":"]', "xtc_probability": 0.0,
    "xtc_threshold": 0.1, "typical_p": 1, "typical": 1.0, "mirostat": 0, "mirostat_mode": 0,
    "mirostat_tau": 5, "mirostat_eta": 0.1, "tfs": 1, "tfs_z": 1.0, "top_a": 0, "nsigma": -1,
    "top_n_sigma": -1, "dynatemp_range": 0, "dynatemp_exponent": 1, "smoothing_factor": 0,
    "smoothing_curve": 1, "epsilon_cutoff": 0, "eta_cutoff": 0, "no_repeat_ngram_size": 0,
    "repeat_last_n": 64, "repetition_penalty_range": 0, "encoder_repetition_penalty": 1,
    "adaptive_target": -1, "adaptive_decay": 0.9, "min_keep": 0, "temperature_last": False,
}  # fmt: skip


def test_neutral_settings_use_no_processor() -> None:
    params = SamplingParams(temperature=0.7, extra_args=NEUTRAL)
    assert [name for name, cls in classes().items() if cls.wants(params)] == []
    sent = SamplingParams(temperature=0.7, extra_args=dict.fromkeys(NEUTRAL))
    assert [name for name, cls in classes().items() if cls.wants(sent)] == []


def test_two_names_of_one_setting_agree() -> None:
    assert prepared(SamplingParams(extra_args={"tfs": 0.5, "tfs_z": 0.5}))
    with pytest.raises(RequestError, match="are different"):
        prepared(SamplingParams(extra_args={"tfs": 0.5, "tfs_z": 0.6}))

"""Repetition is found at the first token at which a plain search finds it."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from dovetail.errors import ConfigError, RequestError
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail_plugins.stop_conditions.repetition_detection import (
    MAX_PATTERN,
    RepetitionDetection,
    RepetitionLimits,
)


def repeats(tokens: Sequence[int], limits: RepetitionLimits) -> bool:
    """Return whether the tokens end with a pattern often enough, by trying all."""
    for size in range(max(limits.min_pattern_size, 1), limits.max_pattern_size + 1):
        whole = size * limits.min_count
        if whole <= len(tokens) and list(tokens[-whole:]) == [*tokens[-size:]] * limits.min_count:
            return True
    return False


def request(**limits: object) -> SamplingParams:
    return SamplingParams(extra_args={"repetition_detection": limits})


def watched(tokens: Sequence[int], limits: RepetitionLimits) -> list[bool]:
    take = RepetitionDetection(limits).watch(SamplingParams())
    assert take is not None
    return [take(token) for token in tokens]


def some_tokens(chance: random.Random) -> list[int]:
    """Return random tokens, parts of them repeated."""
    found: list[int] = []
    alphabet = chance.randint(1, 5)
    while len(found) < 150:
        part = [chance.randrange(alphabet) for _ in range(chance.randint(1, 9))]
        found += part * chance.choice((1, 1, 2, 3, 5, 9))
        if chance.random() < 0.2:
            found += found[-chance.randint(1, 40) :] * chance.randint(1, 3)
    return found


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("seed", range(200))
def test_as_a_plain_search_finds_it(seed: int) -> None:
    """At every token, also after the first one at which a pattern is there often enough."""
    chance = random.Random(seed)
    tokens = some_tokens(chance)
    most = chance.randint(1, 24)
    least, count = chance.randint(0, most), chance.randint(2, 6)
    limits = RepetitionLimits(max_pattern_size=most, min_pattern_size=least, min_count=count)
    wanted = [repeats(tokens[: end + 1], limits) for end in range(len(tokens))]
    assert watched(tokens, limits) == wanted


def test_a_long_text_without_repetition_costs_few_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    from dovetail_plugins.stop_conditions.repetition_detection import PatternWatch

    chance, looks = random.Random(1), []
    look = PatternWatch._look

    def counted(self: PatternWatch, size: int, num_equal: int) -> bool:
        looks.append(size)
        return look(self, size, num_equal)

    monkeypatch.setattr(PatternWatch, "_look", counted)
    limits = RepetitionLimits(max_pattern_size=1000, min_pattern_size=1, min_count=4)
    tokens = [chance.randrange(1000) for _ in range(20_000)]
    assert not any(watched(tokens, limits))
    assert len(looks) < 3 * len(tokens)


def test_only_requests_with_limits_are_followed() -> None:
    off = RepetitionDetection(RepetitionLimits())
    on = RepetitionDetection(RepetitionLimits(max_pattern_size=3, min_count=2))
    assert off.watch(SamplingParams()) is None
    assert on.watch(SamplingParams()) is not None
    assert off.watch(request(max_pattern_size=2, min_count=2)) is not None
    assert on.watch(request(max_pattern_size=0)) is None


@pytest.mark.parametrize(
    ("value", "where"),
    [
        (True, ""),
        ([1, 2, 3], ""),
        ({"max_size": 2}, ".max_size"),
        ({"max_pattern_size": -1}, ".max_pattern_size"),
        ({"max_pattern_size": True}, ".max_pattern_size"),
        ({"max_pattern_size": "2", "min_count": 2}, ".max_pattern_size"),
        ({"max_pattern_size": MAX_PATTERN + 1, "min_count": 2}, ".max_pattern_size"),
        ({"max_pattern_size": 2, "min_pattern_size": 3, "min_count": 2}, ".min_pattern_size"),
        ({"max_pattern_size": 2}, ".min_count"),
        ({"max_pattern_size": 2, "min_count": 1}, ".min_count"),
    ],
)
def test_what_limits_nothing_is_refused(value: object, where: str) -> None:
    params = SamplingParams(extra_args={"repetition_detection": value})
    with pytest.raises(RequestError) as error:
        RepetitionDetection.verify(params)
    assert error.value.where == f"repetition_detection{where}"
    RepetitionDetection.verify(request(max_pattern_size=2, min_count=2))
    RepetitionDetection.verify(SamplingParams())


def test_wrong_options_are_refused_at_the_start() -> None:
    with pytest.raises(ConfigError, match="min_count"):
        RepetitionDetection(RepetitionLimits(max_pattern_size=3))

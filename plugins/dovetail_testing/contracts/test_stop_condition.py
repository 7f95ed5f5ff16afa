"""StopCondition: ends an answer by its own tokens only, and no answer that did not ask for it."""

from __future__ import annotations

import random
from typing import Any

import pytest

from dovetail.errors import RequestError
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.stop_condition import StopCondition, Watch
from dovetail_testing.contract import default_options

PLAIN = SamplingParams(temperature=0.7, max_tokens=64)
VALUES: tuple[Any, ...] = (
    1,
    {"max_pattern_size": 4, "min_pattern_size": 1, "min_count": 3},
)
"""Values of a claimed field that the kit tries."""
WRONG_VALUES: tuple[Any, ...] = ("x", -1, [[]], {"no such name": {}})
NUM_TOKENS = 200


@pytest.fixture
def condition(plugin: Any) -> StopCondition:
    """Return the condition with its default options."""
    made: StopCondition = plugin(default_options(plugin))
    return made


@pytest.fixture
def params(plugin: Any, condition: StopCondition) -> SamplingParams:
    """Return a request that uses the condition. Skips when the kit finds none."""
    claimed = [{name: value} for name in plugin.claims for value in VALUES]
    for one in (PLAIN, *(SamplingParams(extra_args=extra, max_tokens=64) for extra in claimed)):
        try:
            plugin.verify(one)
        except RequestError:
            continue
        if condition.watch(one) is not None:
            return one
    pytest.skip("none of the kit's requests uses this condition")


def followed(condition: StopCondition, params: SamplingParams) -> Watch:
    """Return what follows a new answer."""
    watch = condition.watch(params)
    assert watch is not None
    return watch


def some_tokens(seed: int) -> list[int]:
    """Return tokens, some of them over and over."""
    chance = random.Random(seed)
    found: list[int] = []
    while len(found) < NUM_TOKENS:
        part = [chance.randrange(8) for _ in range(chance.randint(1, 6))]
        found += part * chance.choice((1, 1, 2, 6))
    return found[:NUM_TOKENS]


class TestStopCondition:
    """Clauses of stop conditions."""

    kind = "stop_condition"

    def test_says_why(self, plugin: Any) -> None:
        """`finish_reason` and `stop_reason` are words, and none of the engine's own reasons."""
        assert plugin.finish_reason.strip() == plugin.finish_reason != ""
        assert plugin.stop_reason.strip() == plugin.stop_reason != ""
        assert plugin.finish_reason not in ("stop", "length", "abort", "error")

    def test_plain_requests_pass(self, plugin: Any) -> None:
        """A request that asks for nothing passes `verify`."""
        plugin.verify(PLAIN)

    def test_wrong_values_are_client_errors(self, plugin: Any) -> None:
        """What a field cannot be is refused by a RequestError."""
        for extra in ({name: value} for name in plugin.claims for value in WRONG_VALUES):
            try:
                plugin.verify(SamplingParams(extra_args=extra))
            except RequestError as error:
                assert error.what

    def test_answers_do_not_mix(self, condition: StopCondition, params: SamplingParams) -> None:
        """An answer ends at the same token alone and beside others."""
        answers = [some_tokens(seed) for seed in range(3)]
        alone = []
        for tokens in answers:
            watch = followed(condition, params)
            alone.append([bool(watch(token)) for token in tokens])
        watches = [followed(condition, params) for _ in answers]
        together: list[list[bool]] = [[] for _ in answers]
        for step in zip(*answers, strict=True):
            for watch, token, found in zip(watches, step, together, strict=True):
                found.append(bool(watch(token)))
        assert together == alone

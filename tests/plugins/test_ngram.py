"""The ngram drafter: its index against a plain search, and what it copies."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from dovetail.errors import ConfigError
from dovetail.registry.options import options_for
from dovetail_plugins.drafters.ngram import MAX_CANDIDATES, NgramDrafter, NgramOptions, TokenIndex
from dovetail_testing.contract import model_spec


def searched(tokens: Sequence[int], low: int, high: int) -> int:
    """Return the best earlier place by comparing every one of them, latest first."""
    places = [
        place
        for place in range(len(tokens) - 1, low - 1, -1)
        if tokens[place - low : place] == tokens[len(tokens) - low :]
    ][:MAX_CANDIDATES]

    def agreement(place: int) -> int:
        return max(
            n
            for n in range(low, min(high, place) + 1)
            if tokens[place - n : place] == tokens[len(tokens) - n :]
        )

    return max(places, key=agreement, default=0)


@pytest.mark.parametrize(("low", "high"), [(1, 1), (1, 3), (2, 2), (2, 5), (3, 8)])
@pytest.mark.parametrize("vocab_size", [2, 4, 30])
def test_finds_what_a_plain_search_finds(low: int, high: int, vocab_size: int) -> None:
    random = Random(low * 100 + high * 10 + vocab_size)
    for _ in range(4):
        tokens: list[int] = []
        index = TokenIndex(low, high)
        while len(tokens) < 160:
            tokens += [random.randrange(vocab_size) for _ in range(random.choice((1, 1, 2, 9)))]
            assert index.find(tokens) == searched(tokens, low, high)


def test_an_empty_sequence_has_no_place() -> None:
    assert TokenIndex(1, 1).find([]) == 0


def drafter(**options: int) -> NgramDrafter:
    return NgramDrafter(NgramOptions(**options), model_spec(), 8)


def test_copies_what_followed_the_longest_agreement() -> None:
    text = [9, 1, 2, 3, 40, 41, 42, 43, 8, 2, 3, 50, 51, 52, 7, 1, 2, 3]
    assert drafter().propose("r", text, 3) == [40, 41, 42]
    assert drafter(prompt_lookup_max=2).propose("r", text, 3) == [50, 51, 52]  # the latest one
    assert drafter(prompt_lookup_min=4).propose("r", text, 3) == ()


@pytest.mark.parametrize("period", [1, 2, 3])
def test_a_short_loop_goes_round(period: int) -> None:
    text = [5, *([7, 8, 9][:period] * 5)]
    assert list(drafter().propose("r", text, 8)) == ([7, 8, 9][:period] * 8)[:8]


def test_lengths_give_way_to_each_other() -> None:
    assert NgramOptions().lengths == (2, 5)
    assert NgramOptions(prompt_lookup_max=1).lengths == (1, 1)
    assert NgramOptions(prompt_lookup_min=7).lengths == (7, 7)
    with pytest.raises(ConfigError, match="3 is above prompt_lookup_max 2"):
        options_for(NgramDrafter, {"prompt_lookup_min": 3, "prompt_lookup_max": 2})

"""The suffix drafter: its index against a plain search, its votes, and what it remembers."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from dovetail.errors import ConfigError
from dovetail.registry.options import options_for
from dovetail_plugins.drafters import suffix as module
from dovetail_plugins.drafters._suffixes import MAX_PLACES, SuffixIndex
from dovetail_plugins.drafters.suffix import SuffixDrafter
from dovetail_testing.contract import model_spec
from support.inside import num_finished_tokens

A, B, C, X, Y = 1, 2, 3, 8, 9


def searched(tokens: Sequence[int], text: Sequence[int], most: int, oldest: int) -> list[list[int]]:
    """Return (length, place) of every match of at least two tokens, latest places first."""
    found = []
    for place in range(len(tokens) - 1, oldest + 1, -1):
        length = 0
        while (
            length < min(most, len(text), place - oldest)
            and tokens[place - length - 1] == text[len(text) - length - 1]
        ):
            length += 1
        if length >= 2:
            found.append([length, place])
    return found


@pytest.mark.parametrize("vocab_size", [3, 12, 200_000])
@pytest.mark.parametrize("drops", [False, True])
def test_matches_what_a_plain_search_finds(vocab_size: int, drops: bool) -> None:
    random = Random(vocab_size)
    index, tokens, oldest = SuffixIndex(), [], 0
    while len(tokens) < 300:
        new = [random.randrange(vocab_size) for _ in range(random.choice((1, 1, 2, 9)))]
        if len(tokens) > 20 and random.random() < 0.3:
            new += tokens[-random.randrange(3, 20) :]
        tokens += new
        index.extend(new)
        if drops and len(tokens) - oldest > 80:
            oldest = len(tokens) - 30
            index.drop_before(oldest)
        found = [list(one) for one in index.matches(tokens, 7)]
        # A chain ends after so many places, those of other tokens with the same hash among them.
        assert found == searched(tokens, tokens, 7, oldest)[: len(found)]
        if vocab_size > 3:
            assert len(found) == min(MAX_PLACES, len(searched(tokens, tokens, 7, oldest)))
    assert index.end == len(tokens)
    assert list(index.tokens(oldest)) == tokens[oldest:]


def drafter(**options: float) -> SuffixDrafter:
    names = {f"suffix_decoding_{name}": value for name, value in options.items()}
    return SuffixDrafter(options_for(SuffixDrafter, names), model_spec(), 8)


def told(made: SuffixDrafter, text: Sequence[int], most: int = 8, name: str = "r") -> list[int]:
    return list(made.propose(name, list(text), most))


def test_the_more_frequent_continuation_wins() -> None:
    text = [A, B, C, 5, 6, 7, A, B, C, 5, 6, 8, A, B, C, 4, 4, 4, A, B, C]
    assert told(drafter(), text, most=2) == [5, 6]
    latest = [A, B, C, 5, 6, 7, A, B, C, 4, 4, 4, A, B, C]
    assert told(drafter(), latest, most=2) == [4, 4]  # of two as frequent ones


def test_what_followed_too_seldom_is_not_drafted() -> None:
    """Two thirds go on with 5, and half of these with 6."""
    text = [A, B, C, 5, 6, 20, A, B, C, 5, 7, 21, A, B, C, 4, 22, A, B, C]
    assert told(drafter(min_token_prob=0.3), text, most=2) == [5, 7]
    assert told(drafter(min_token_prob=0.5), text, most=2) == [5]
    assert told(drafter(min_token_prob=0.7), text, most=2) == []


def test_a_draft_is_as_long_as_its_match_allows() -> None:
    text = [A, B, C, 4, 5, 6, 7, 0, 11, 12, 13, A, B, C]
    assert told(drafter(), text) == [4, 5, 6]
    assert told(drafter(max_spec_factor=2), text) == [4, 5, 6, 7, 0, 11]
    assert told(drafter(max_spec_factor=0), text) == []
    assert told(drafter(max_spec_factor=2), text, most=2) == [4, 5]
    assert told(drafter(max_spec_factor=2, max_tree_depth=6), text) == [4, 5, 6, 7]


def test_a_loop_is_gone_round_again() -> None:
    assert told(drafter(), [A, B, C] * 4) == [A, B, C, A, B, C, A, B]
    assert told(drafter(max_tree_depth=100), [A] * 30) == [A] * 8


def test_a_longer_match_beats_a_frequent_short_one() -> None:
    often = [B, C, 5, 5] * 3
    text = [X, Y, A, B, C, 7, 7, 7, 7, 7, *often, X, Y, A, B, C]
    assert told(drafter(), text) == [7, 7, 7, 7, 7]


def test_answers_of_finished_requests_are_drafted_from() -> None:
    made = drafter()
    assert told(made, [0, A], name="first") == []
    told(made, [0, A, B, C, 4, 5, 6], name="first")
    assert told(made, [11, A, B]) == []  # it is not finished yet
    made.forget("first")
    assert told(made, [11, A, B]) == [C, 4]
    assert told(made, [7, 0, A]) == []  # prompts are not remembered


def test_a_draft_ends_where_the_answer_ended() -> None:
    made = drafter(max_spec_factor=4)
    for name, text in (("first", [A, B, C]), ("second", [5, 6, 7, 8])):
        told(made, text[:1], name=name)
        told(made, text, name=name)
        made.forget(name)
    assert told(made, [A, B]) == [C]


def test_only_the_latest_answers_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    made, none = drafter(max_cached_requests=2), drafter(max_cached_requests=0)
    for number in range(9):
        for one in (made, none):
            told(one, [20 + number], name=str(number))
            told(one, [20 + number, A, B, 30 + number], name=str(number))
            one.forget(str(number))
    assert [told(made, [20 + n, A, B], name=f"x{n}") for n in (6, 7, 8)] == [
        [
            38,
        ],
        [37],
        [38],
    ]
    assert told(none, [28, A, B]) == []
    monkeypatch.setattr(module, "MAX_FINISHED_TOKENS", 64)
    long = drafter()
    for number in range(50):
        told(long, [number], name=str(number))
        told(long, [number, *range(40)], name=str(number))
        long.forget(str(number))
    assert num_finished_tokens(long) <= 128 and not long._live


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("max_tree_depth", 2, "below 3"),
        ("max_cached_requests", -1, "below 0"),
        ("min_token_prob", 1.5, "above 1"),
        ("max_spec_factor", "x", "float"),
    ],
)
def test_options_that_cannot_be(name: str, value: object, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        options_for(SuffixDrafter, {f"suffix_decoding_{name}": value})

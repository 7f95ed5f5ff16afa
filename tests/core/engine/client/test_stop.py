"""StopMatcher: the answer does not depend on how the text was cut."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import strategies as st

from dovetail.engine.client.results.stop import StopMatcher
from support.drawn import given

TEXT = st.text(alphabet="ab ü", max_size=40)
STOPS = st.lists(st.text(alphabet="ab ü", min_size=1, max_size=5), max_size=4)


def expected(text: str, stops: list[str], *, includes_stop: bool) -> tuple[str, str | None]:
    """The definition: the stop string complete first, the longest of those that end together."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            stop = max(found, key=len)
            return text[: end if includes_stop else end - len(stop)], stop
    return text, None


@given(TEXT, STOPS, st.lists(st.integers(0, 40)), st.booleans())
def test_any_cut_gives_the_defined_answer(
    text: str, stops: list[str], cuts: list[int], includes_stop: bool
) -> None:
    matcher = StopMatcher(stops, includes_stop=includes_stop)
    edges = sorted({0, len(text), *(min(cut, len(text)) for cut in cuts)})
    shown = ""
    for start, end in pairwise(edges):
        shown += matcher.push(text[start:end])
        answer, _ = expected(text, stops, includes_stop=includes_stop)
        assert answer.startswith(shown), "something was shown that should have been held back"
    shown += matcher.flush()
    assert (shown, matcher.matched) == expected(text, stops, includes_stop=includes_stop)


@given(TEXT, STOPS)
def test_no_more_is_held_back_than_needed(text: str, stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    shown = "".join(matcher.push(char) for char in text)
    if matcher.matched is None:
        held = text[len(shown) :]
        assert held == "" or any(stop.startswith(held) for stop in stops)


def test_a_match_before_it_may_stop_is_ordinary_text() -> None:
    matcher = StopMatcher(["END"])
    assert matcher.push("an END ", may_stop=False) == "an END "
    assert matcher.push("EN", may_stop=False) == ""
    assert matcher.push("D.", may_stop=True) == ""
    assert matcher.matched == "END"


def test_nothing_comes_after_a_match() -> None:
    matcher = StopMatcher(["x"], includes_stop=True)
    assert matcher.push("axb") == "ax"
    assert matcher.push("c") == ""
    assert matcher.flush() == ""


def test_long_repetitive_stop_strings_cost_the_same_per_character() -> None:
    matcher = StopMatcher(["a" * 1000 + "b"])
    text = "a" * 20_000
    assert len(matcher.push(text)) == 19_000

"""Drafter: guesses within bounds, the same every time, each request on its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import pytest

from dovetail.interfaces.drafter import Drafter
from dovetail_testing.contract import default_options, model_spec, requires, without

VOCAB_SIZE = 12
MAX_TOKENS = 6


def texts() -> list[list[int]]:
    """Return token sequences: random ones, a loop, one token over and over, a single token."""
    random = Random(5)
    noise = [[random.randrange(VOCAB_SIZE) for _ in range(80)] for _ in range(3)]
    return [*noise, [3, 1, 4, 1, 5] * 16, [7] * 80, [2]]


def growth(text: Sequence[int], seed: int) -> Iterator[list[int]]:
    """Yield beginnings of the text that grow by one to eight tokens, the whole text last."""
    random = Random(seed)
    end = 1
    while end < len(text):
        yield list(text[:end])
        end += random.randint(1, 8)
    yield list(text)


def answers(drafter: Drafter, name: str, text: Sequence[int], seed: int = 0) -> list[list[int]]:
    """Return the drafts while the text grows."""
    return [list(drafter.propose(name, part, MAX_TOKENS)) for part in growth(text, seed)]


@pytest.fixture
def drafter(plugin: Any) -> Drafter:
    """Return the drafter with its default options."""
    return new_drafter(plugin)


def new_drafter(plugin: Any) -> Drafter:
    """Return a new drafter for a model of few tokens."""
    model = model_spec(vocab_size=VOCAB_SIZE)
    drafter: Drafter = plugin(default_options(plugin), model, MAX_TOKENS)
    return drafter


class TestDrafter:
    """Clauses of drafters by token ids."""

    kind = "drafter"

    @without("on_worker")
    @pytest.mark.parametrize("max_tokens", [1, 2, MAX_TOKENS])
    def test_never_more_than_asked(self, drafter: Drafter, max_tokens: int) -> None:
        """There are at most as many guesses as requested, maybe none."""
        for number, text in enumerate(texts()):
            for part in growth(text, number):
                assert len(drafter.propose(str(number), part, max_tokens)) <= max_tokens

    @without("on_worker")
    def test_ids_are_in_the_vocabulary(self, drafter: Drafter) -> None:
        """Every guess is a plain int, and an id the model can draw."""
        for number, text in enumerate(texts()):
            for guesses in answers(drafter, str(number), text):
                assert all(type(guess) is int for guess in guesses)
                assert all(0 <= guess < VOCAB_SIZE for guess in guesses)

    @without("on_worker")
    def test_leaves_the_tokens_alone(self, drafter: Drafter) -> None:
        """The engine's own list is as it was."""
        for number, text in enumerate(texts()):
            tokens = list(text)
            drafter.propose(str(number), tokens, MAX_TOKENS)
            assert tokens == text

    @without("on_worker")
    def test_is_deterministic(self, plugin: Any) -> None:
        """Two drafters with the same input give the same drafts."""
        for number, text in enumerate(texts()):
            first, second = new_drafter(plugin), new_drafter(plugin)
            assert answers(first, str(number), text) == answers(second, str(number), text)

    @without("on_worker")
    def test_requests_do_not_mix(self, plugin: Any) -> None:
        """With interleaved requests, each request gets the same drafts as by itself."""
        alone = [answers(new_drafter(plugin), str(n), text) for n, text in enumerate(texts())]
        together, crowd = new_drafter(plugin), [list(growth(text, 0)) for text in texts()]
        drafts: list[list[list[int]]] = [[] for _ in crowd]
        for turn in range(max(map(len, crowd))):
            for number, parts in enumerate(crowd):
                if turn < len(parts):
                    guesses = together.propose(str(number), parts[turn], MAX_TOKENS)
                    drafts[number].append(list(guesses))
        assert drafts == alone

    @without("on_worker")
    def test_calls_may_be_far_apart(self, drafter: Drafter) -> None:
        """Between two calls a request may have grown by many tokens."""
        drafter.propose("r", [1, 2, 3], MAX_TOKENS)
        guesses = drafter.propose("r", [1, 2, 3] * 100, MAX_TOKENS)
        assert len(guesses) <= MAX_TOKENS

    @requires("remembers")
    def test_remembers(self, plugin: Any) -> None:
        """A text that was drafted before is drafted better than the first time."""
        drafter, text = new_drafter(plugin), texts()[0]

        def num_right(name: str) -> int:
            parts = list(growth(text, 0))
            drafts = [drafter.propose(name, part, MAX_TOKENS) for part in parts]
            drafter.forget(name)
            pairs = zip(parts, drafts, strict=True)
            return sum(list(d) == text[len(part) : len(part) + len(d)] for part, d in pairs if d)

        first = num_right("r")
        assert num_right("r") > first

    @requires("predictions")
    def test_drafts_what_is_predicted(self, plugin: Any) -> None:
        """Of a request whose client predicts the answer, the draft is the rest of that."""
        drafter, text = new_drafter(plugin), texts()[0]
        half = len(text) // 2
        drafter.expect("r", half, text[half:])
        draft = drafter.propose("r", text[: half + 1], MAX_TOKENS)
        assert list(draft) == text[half + 1 : half + 1 + MAX_TOKENS]
        drafter.forget("r")

    @without("on_worker")
    @without("remembers")
    def test_forgets(self, plugin: Any, drafter: Drafter) -> None:
        """After forget the same name means another request; unknown names are ignored."""
        first, second = texts()[0], texts()[3]
        answers(drafter, "r", first)
        drafter.forget("r")
        drafter.forget("r")
        drafter.forget("unknown")
        assert answers(drafter, "r", second) == answers(new_drafter(plugin), "r", second)

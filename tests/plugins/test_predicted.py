"""Predictions: the place of an answer in the text that a client predicts for it."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from dovetail_plugins.drafters._predicted import Prediction
from dovetail_plugins.drafters.ngram import NgramDrafter, NgramOptions
from dovetail_plugins.drafters.prediction import PredictionDrafter
from dovetail_plugins.drafters.suffix import SuffixDrafter, SuffixOptions
from dovetail_testing.contract import model_spec

PROMPT = [1, 2, 3]
TEXT = list(range(100, 160))
LENGTH = 8


def num_steps(answer: Sequence[int], predicted: Sequence[int], length: int = LENGTH) -> int:
    """Return how many steps an answer takes if drafts are accepted as far as they are right."""
    prediction, drawn, steps = Prediction(len(PROMPT), predicted), 0, 0
    while drawn < len(answer):
        draft = prediction.propose([*PROMPT, *answer[:drawn]], length) if drawn else ()
        accepted = 0
        while drawn + accepted < len(answer) and accepted < len(draft):
            if draft[accepted] != answer[drawn + accepted]:
                break
            accepted += 1
        drawn += accepted + 1
        steps += 1
    return steps


def test_an_answer_as_predicted_takes_one_step_for_each_draft() -> None:
    assert num_steps(TEXT, TEXT) == 1 + -(-(len(TEXT) - 1) // (LENGTH + 1))


def test_nothing_is_drafted_from_an_empty_prediction() -> None:
    assert num_steps(TEXT, []) == len(TEXT)
    assert num_steps(TEXT, [7]) == len(TEXT)


@pytest.mark.parametrize(
    ("answer", "lost"),
    [
        ([*TEXT[:20], 7, *TEXT[21:]], 1),  # a token replaced
        ([*TEXT[:20], *range(200, 210), *TEXT[20:]], 12),  # text inserted
        ([*TEXT[:20], *TEXT[30:]], 2),  # text left out
        ([7, 8, *TEXT], 4),  # words before it
        ([*TEXT, 7, 8], 2),  # and after it
        ([*TEXT[30:], *TEXT[:30]], 4),  # two halves exchanged
    ],
)
def test_the_place_is_found_again_after_a_change(answer: Sequence[int], lost: int) -> None:
    """A change costs one step per changed token, and up to two more to find the place again."""
    assert num_steps(answer, TEXT) <= num_steps(TEXT, TEXT) + lost + 1


def test_the_place_that_agrees_longest_is_taken() -> None:
    """A line that occurs twice: the later one follows what was written before."""
    predicted = [5, 6, 7, 30, 31, 32, 9, 5, 6, 7, 40, 41, 42]
    prediction = Prediction(0, predicted)
    assert list(prediction.propose([8, 9, 5, 6], 3)) == [7, 40, 41]


def test_any_answer_can_be_followed() -> None:
    """Random answers and predictions raise nothing, and drafts come from the prediction."""
    random = Random(3)
    for _ in range(200):
        predicted = [random.randrange(6) for _ in range(random.randrange(12))]
        prediction, tokens = Prediction(2, predicted), [0, 0]
        for _ in range(20):
            tokens += [random.randrange(6) for _ in range(random.choice((1, 1, 3)))]
            draft = list(prediction.propose(tokens, 4))
            assert draft == [] or str(draft)[1:-1] in str(predicted)


def test_each_drafter_takes_predictions_and_forgets_them() -> None:
    model = model_spec()
    for drafter in (
        PredictionDrafter(None, model, 4),
        NgramDrafter(NgramOptions(), model, 4),
        SuffixDrafter(SuffixOptions(), model, 4),
    ):
        assert "predictions" in drafter.capabilities
        drafter.expect("a", 3, [10, 11, 12])
        assert list(drafter.propose("a", [*PROMPT, 10], 4)) == [11, 12]
        assert list(drafter.propose("b", [*PROMPT, 10], 4)) == []
        drafter.forget("a")
        assert list(drafter.propose("a", [*PROMPT, 10], 4)) == []

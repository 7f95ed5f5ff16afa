"""Long prompts in pieces: every token once, special tokens around each; one vector of all."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail.engine.client.pooling.pieces import PieceVectors, pieces
from dovetail.interfaces.data.step import Pooled

CLS, SEP = 101, 102


def test_a_prompt_that_fits_stays_whole() -> None:
    assert pieces((CLS, 1, 2, SEP), 4, (CLS,), (SEP,)) == ((CLS, 1, 2, SEP),)


def test_special_tokens_stand_around_each_piece() -> None:
    prompt = (CLS, *range(7), SEP)
    assert pieces(prompt, 5, (CLS,), (SEP,)) == (
        (CLS, 0, 1, 2, SEP),
        (CLS, 3, 4, 5, SEP),
        (CLS, 6, SEP),
    )


@pytest.mark.parametrize("most", [1, 2])
def test_where_they_leave_no_room_or_are_not_there_nothing_is_added(most: int) -> None:
    prompt = (CLS, 0, 1, SEP)
    parts = pieces(prompt, most, (CLS,), (SEP,))
    assert sum(parts, ()) == prompt and max(map(len, parts)) == most
    assert pieces((5, 6, 7), 2, (CLS,), (SEP,)) == ((5, 6), (7,))


@pytest.mark.parametrize("is_normalized", [True, False])
def test_vectors_are_averaged_by_their_lengths_in_any_order(is_normalized: bool) -> None:
    vectors = np.array([[3, 0], [0, 1], [1, 1]], dtype=np.float32)
    whole = np.array([3 * 4 + 1 * 2, 1 * 3 + 1 * 2]) / 9
    if is_normalized:
        whole = whole / np.linalg.norm(whole)
    for order in ((0, 1, 2), (2, 0, 1)):
        joined = PieceVectors([4, 3, 2], is_normalized=is_normalized)
        told = [joined.take(i, Pooled(shape=(2,), data=vectors[i].tobytes())) for i in order]
        assert told[:2] == [None, None] and told[2] is not None
        np.testing.assert_allclose(np.frombuffer(told[2].data, np.float32), whole, rtol=1e-6)

"""The trial of a constraint's first tokens, with matchers that are slow or stuck at some place."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import pytest

from dovetail.structured_output import first_token_probe
from dovetail.structured_output.first_token_probe import NOTHING, FirstTokenProbe, TooSlow
from dovetail_testing.random_walks import small_vocabulary

VOCABULARY = small_vocabulary()


class Fake:
    """A constraint and its matcher: allows `ids`, the end alone after `most` tokens, and takes
    `slow_s` for the token at `slow_at`."""

    num_bytes = 1

    def __init__(
        self, ids: Sequence[int], most: int = 99, slow_at: int = -1, slow_s: float = 0.0
    ) -> None:
        self.ids, self.most, self.slow_at, self.slow_s = ids, most, slow_at, slow_s
        self.taken: list[int] = []
        self.copies: list[Fake] = []

    def matcher(self) -> Fake:
        """Return a matcher at the beginning."""
        self.copies.append(Fake(self.ids, self.most, self.slow_at, self.slow_s))
        return self.copies[-1]

    def accept(self, token_id: int) -> bool:
        """Take any token that is allowed."""
        self.taken.append(token_id)
        return token_id in self.ids

    def fill(self, mask: np.ndarray) -> None:
        """Allow the tokens, or the end."""
        until_s = time.process_time() + (self.slow_s if len(self.taken) == self.slow_at else 0)
        while time.process_time() < until_s:
            pass
        for i in self.ids if len(self.taken) < self.most else VOCABULARY.eos_ids:
            mask[i // 32] |= np.uint32(1) << np.uint32(i % 32)

    def is_complete(self) -> bool:
        """Return whether only the end may follow."""
        return len(self.taken) >= self.most

    def forced(self) -> Sequence[int]:
        """Return nothing."""
        return ()

    def rollback(self, num_tokens: int) -> None:
        """Take back tokens."""
        del self.taken[-num_tokens:]


def test_it_begins_with_the_last_tokens_then_with_random_ones() -> None:
    ids = [5, 40, 300]
    fake = Fake(ids, most=3)
    assert FirstTokenProbe(VOCABULARY).fault(fake) is None
    longest = max(ids, key=lambda i: len(VOCABULARY.tokens[i]))
    assert fake.copies[0].taken == [300] * 3
    assert len(fake.copies[1].taken) == 3
    assert len(fake.copies) == 2 or fake.copies[2].taken == [longest] * 3


def test_a_constraint_without_any_token_is_a_fault() -> None:
    assert FirstTokenProbe(VOCABULARY).fault(Fake([])) == NOTHING


@pytest.mark.parametrize("slow_at", [1, 2])
def test_a_slow_token_is_found(slow_at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_token_probe, "SLOW_S", 0.05)
    with pytest.raises(TooSlow, match="per token"):
        FirstTokenProbe(VOCABULARY).fault(Fake([5], slow_at=slow_at, slow_s=0.1))


def test_doubtful_constraints_are_tried_in_all_ways_and_quick_ones_are_not() -> None:
    slow = Fake([5, 40], most=2, slow_at=1, slow_s=first_token_probe.DOUBT_S * 1.2)
    assert FirstTokenProbe(VOCABULARY).fault(slow) is None
    assert len(slow.copies) == 2 + first_token_probe.NUM_RANDOM
    quick = Fake([5, 40], most=12, slow_at=5, slow_s=first_token_probe.SURE_S * 2)
    assert FirstTokenProbe(VOCABULARY).fault(quick) is None
    assert len(quick.copies) == first_token_probe.SURE_ANSWERS

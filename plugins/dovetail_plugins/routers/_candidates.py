"""Candidates: the engines that a router compares, all of a few or some of many.

Source: Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing", 2001: the best of a
few engines drawn at random is nearly as good as the best of all, and costs the same for any number.
It also keeps several API processes, each with numbers a little old, from choosing the same engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from dovetail.interfaces.router import EngineView

MOST = 16
"""Maximum number of engines that are compared."""


class Candidates:
    """Draws engines. The same `process` draws the same."""

    def __init__(self, process: int) -> None:
        self._random = Random(process)
        self._turn = process

    def of(self, engines: Sequence[EngineView]) -> Sequence[EngineView]:
        """Return at most MOST engines, or all if there are few. The first of them changes from call
        to call, so that tied engines take turns.

        Of many, it takes a random start and a random stride.
        """
        count = len(engines)
        if count > MOST:
            draw = self._random.random
            first, apart = int(draw() * count), 1 + int(draw() * (count - 1))
            return [engines[at % count] for at in range(first, first + MOST * apart, apart)]
        self._turn = turn = (self._turn + 1) % count
        return (*engines[turn:], *engines[:turn])

    def some_of(self, numbers: int) -> list[int]:
        """Return at most MOST of the numbers of the bits set in `numbers`, of few all."""
        found: list[int] = []
        start = self._random.randrange(numbers.bit_length()) if numbers.bit_count() > MOST else 0
        for part, first in ((numbers >> start, start), (numbers & ((1 << start) - 1), 0)):
            while part and len(found) < MOST:
                lowest = part & -part
                found.append(first + lowest.bit_length() - 1)
                part ^= lowest
        return found

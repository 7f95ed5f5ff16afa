"""FirstTokenProbe: tries the first tokens of some answers under a constraint, where a slow token
does no harm.

Matchers in the engine cannot be killed, and a constraint that compiles in no time may take minutes
per token. So some answers are begun in the compile process, which is killed at the time limit.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence

import numpy as np

from dovetail.interfaces.constraint import Constraint
from dovetail.interfaces.structured_output import (
    InvalidConstraint,
    LoadedConstraint,
    Matcher,
    StructuredOutputBackend,
    Vocabulary,
)
from dovetail.structured_output.artifacts import compiled, packed

NUM_TOKENS = 12
SLOW_S = 3.0
"""Processor time that one token may take. lm-format-enforcer's first mask in a string takes half of
it at 128,000 tokens."""
SPEND_S = 0.1
"""Processor time after which no further token is tried, except the first of the first answer."""
FIRST_TOKENS = 3
NOTHING = "no text that this model can write meets this constraint"


class TooSlow(Exception):
    """A token takes too long for the engine."""


class FirstTokenProbe:
    """Begins answers over one vocabulary: by the last allowed tokens, the longest, random ones."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._lengths = np.array([len(text) for text in vocabulary.tokens])

    def compiled(self, backend: StructuredOutputBackend, constraint: Constraint) -> bytes:
        """Return the artifact of a constraint under which answers can begin.

        Raises: InvalidConstraint, TooSlow, and what the library raises
        """
        artifact = compiled(backend, constraint)
        fault = self.fault(backend.load(artifact.made))
        if fault is not None:
            raise InvalidConstraint(fault)
        return packed(artifact)

    def fault(self, loaded: LoadedConstraint) -> str | None:
        """Return why no answer can begin, or None. Raises: TooSlow, and what the library raises"""
        chance = random.Random(0)
        ways: Sequence[Callable[[np.ndarray], int]] = (
            lambda ids: int(ids[-1]),
            lambda ids: int(ids[self._lengths[ids].argmax()]),
            *(3 * [lambda ids: int(chance.choice(ids))]),
        )
        begun_s = time.process_time()
        for number, way in enumerate(ways):
            matcher = loaded.matcher()
            for position in range(NUM_TOKENS):
                must = number == 0 and position < FIRST_TOKENS
                if not must and time.process_time() - begun_s > SPEND_S:
                    return None
                goes_on, fault = self._step(matcher, way, is_first=position == 0)
                if fault is not None:
                    return fault
                if not goes_on:
                    break
        return None

    def _step(
        self, matcher: Matcher, way: Callable[[np.ndarray], int], *, is_first: bool
    ) -> tuple[bool, str | None]:
        """Advance by a token; return whether more may follow, and what is wrong."""
        begun_s = time.process_time()
        mask = np.zeros(self._vocabulary.mask_words, dtype=np.uint32)
        matcher.fill(mask)
        ids = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
        going = ids[~np.isin(ids, self._vocabulary.eos_ids)]
        if not len(ids):
            return False, NOTHING
        if len(going) and not matcher.accept(way(going)):
            return False, "the backend forbids a token that its own mask allows"
        took_s = time.process_time() - begun_s
        if took_s > SLOW_S and not is_first:
            raise TooSlow(f"takes {took_s:.1f} s per token to enforce")
        return bool(len(going)), None

"""FirstTokenProbe: tries the first tokens of some answers in the compile process, where a slow
token does no harm.

Matchers in the engine cannot be killed, and a constraint that compiles quickly may take minutes per
token. So some answers are started in the compile process, which is killed at the time limit.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from functools import partial

import numpy as np

from dovetail.interfaces.data.constraint import Constraint
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
"""Maximum processor time of one token. lm-format-enforcer's first mask in a string takes half of it
with 128,000 tokens."""
SPEND_S = 0.1
"""Processor time after which no more tokens are tried, except the first of the first answer."""
SURE_ANSWERS = 2
SURE_S = 0.001
"""Processor time after which only these answers are started, unless a token took DOUBT_S."""
DOUBT_S = 0.01
FIRST_TOKENS = 3
NUM_RANDOM = 3
SLICE = 4096
SPARSE = 512
"""Masks with fewer words are checked token by token; in others a long token is found quickly."""
NOTHING = "no text that this model can write meets this constraint"


class TooSlow(Exception):
    """A token takes too long for use in the engine."""


class FirstTokenProbe:
    """Starts answers for one vocabulary, with the last, random or longest allowed tokens."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._lengths = np.array([len(text) for text in vocabulary.tokens])
        self._longest_first = np.argsort(-self._lengths, kind="stable")
        self._no_ends = np.full(vocabulary.mask_words, 0xFFFFFFFF, dtype=np.uint32)
        for token_id in vocabulary.eos_ids:
            self._no_ends[token_id // 32] &= ~(np.uint32(1) << np.uint32(token_id % 32))

    def compiled(self, backend: StructuredOutputBackend, constraint: Constraint) -> bytes:
        """Return the artifact of a constraint, checked to allow the start of an answer.

        Raises: InvalidConstraint, TooSlow, and errors of the library
        """
        artifact = compiled(backend, constraint)
        fault = self.fault(backend.load(artifact.made))
        if fault is not None:
            raise InvalidConstraint(fault)
        return packed(artifact)

    def fault(self, loaded: LoadedConstraint) -> str | None:
        """Return why no answer can start, or None. Raises: TooSlow, and errors of the library"""
        at_random = partial(_at_random, random.Random(0))
        ways: tuple[Callable[[np.ndarray], int], ...] = (
            _last,
            at_random,
            self._longest,
            *((NUM_RANDOM - 1) * [at_random]),
        )
        begun_s, slowest_s = time.process_time(), 0.0
        for number, way in enumerate(ways):
            if (
                number >= SURE_ANSWERS
                and slowest_s < DOUBT_S
                and time.process_time() - begun_s > SURE_S
            ):
                return None
            matcher = loaded.matcher()
            for position in range(NUM_TOKENS):
                step_s = time.process_time()
                must = number == 0 and position < FIRST_TOKENS
                if not must and step_s - begun_s > SPEND_S:
                    return None
                goes_on, fault = self._step(matcher, way, is_first=position == 0)
                slowest_s = max(slowest_s, time.process_time() - step_s)
                if fault is not None:
                    return fault
                if not goes_on:
                    break
        return None

    def _step(
        self, matcher: Matcher, way: Callable[[np.ndarray], int], *, is_first: bool
    ) -> tuple[bool, str | None]:
        """Advance by a token; return whether more may follow, and the error text, if any."""
        begun_s = time.process_time()
        mask = np.zeros(self._vocabulary.mask_words, dtype=np.uint32)
        matcher.fill(mask)
        if not mask.any():
            return False, NOTHING
        mask &= self._no_ends
        goes_on = bool(mask.any())
        if goes_on and not matcher.accept(way(mask)):
            return False, "the backend forbids a token that its own mask allows"
        took_s = time.process_time() - begun_s
        if took_s > SLOW_S and not is_first:
            raise TooSlow(f"takes {took_s:.1f} s per token to enforce")
        return goes_on, None

    def _longest(self, mask: np.ndarray) -> int:
        """Return the longest token of a non-empty mask."""
        words = np.flatnonzero(mask)
        if len(words) < SPARSE:
            bits = np.unpackbits(mask[words].view(np.uint8), bitorder="little")
            ids = (32 * words[:, None] + np.arange(32)).ravel()[bits != 0]
            return int(ids[self._lengths[ids].argmax()])
        starts = range(0, len(self._longest_first), SLICE)
        for ids in (self._longest_first[start : start + SLICE] for start in starts):
            allowed = mask[ids // 32] >> (ids % 32).astype(np.uint32) & np.uint32(1)
            if allowed.any():
                return int(ids[allowed.argmax()])
        raise AssertionError("a bit beyond the vocabulary is set")


def _last(mask: np.ndarray) -> int:
    word = int(np.flatnonzero(mask)[-1])
    return 32 * word + int(mask[word]).bit_length() - 1


def _at_random(chance: random.Random, mask: np.ndarray) -> int:
    word = int(chance.choice(np.flatnonzero(mask)))
    return 32 * word + chance.choice([bit for bit in range(32) if int(mask[word]) >> bit & 1])

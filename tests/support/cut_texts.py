"""Ways to cut a text for tests of parsers: a sample of the conformance kit's, in a full run all."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from dovetail_testing import text_splits
from support.samples import sample_of

NUM_FIXED = 5
"""So many ways come first, that cut into parts of one size: each is tried."""


def cuts(text: str) -> Iterator[list[str]]:
    """Yield the text cut into single characters, fixed sizes, two parts, and at random."""
    ways = text_splits.cuts(text)
    yield from islice(ways, NUM_FIXED)
    yield from islice(ways, 0, None, sample_of(1, 7))

"""DRY's breakers are found in the text, however it is split into tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.logits import RowTokens
from dovetail.interfaces.structured_output import Vocabulary
from dovetail_plugins.logits_processors.samplers._repeats import Breakers, Repeats, common_ends
from dovetail_plugins.logits_processors.samplers.dry import DEFAULT_BREAKERS, breakers_of

TOKENS = (b"a", b"b", b"ab", b"<", b"br>", b":x", b"\xc3", b"\xa9", b"", b" c")
VOCABULARY = Vocabulary(
    tokens=TOKENS, special={"<|end|>": 8}, eos_ids=(8,), special_ids=frozenset({8}), size=10
)


def found(texts: Sequence[str], ids: Sequence[int], pieces: Sequence[int]) -> list[bool]:
    """Return where breakers end, when the tokens come in pieces of these sizes."""
    breakers, ended, at = Breakers(texts, VOCABULARY), [], 0
    for size in [*pieces, len(ids)]:
        ended += breakers.are_ended_by(ids[at : at + size]).tolist()
        at += size
    return ended


@pytest.mark.parametrize("pieces", [(), (1, 1, 1, 1, 1), (2, 3)])
@pytest.mark.parametrize(
    ("texts", "ids", "wanted"),
    [
        (["ab"], [0, 1, 2, 0, 0, 1], [1, 2, 5]),
        (["<br>"], [3, 4, 4, 3, 3, 4], [1, 5]),
        ([":"], [0, 5, 1, 5], [1, 3]),
        (["é"], [6, 7, 6, 6, 7], [1, 4]),
        (["<|end|>"], [0, 8, 1], [1]),
        (["bab", "x"], [1, 2, 5, 1, 0, 1], [1, 2, 5]),
        ([], [0, 1, 2], []),
    ],
)
def test_breakers(
    texts: list[str], ids: list[int], wanted: list[int], pieces: tuple[int, ...]
) -> None:
    assert np.flatnonzero(found(texts, ids, pieces)).tolist() == wanted


@pytest.mark.parametrize("seed", range(20))
def test_common_ends(seed: int) -> None:
    made = np.random.default_rng(seed)
    ids = made.integers(0, 1 + seed % 4, size=made.integers(0, 40)).tolist()
    wanted = []
    for end in range(len(ids) - 1):
        size = 0
        while size <= end and ids[end - size] == ids[len(ids) - 1 - size]:
            size += 1
        wanted.append(size)
    assert common_ends(ids)[:-1] == wanted


def test_a_long_text_of_one_word_is_read_in_linear_time() -> None:
    """Comparing all with all would take 10^10 steps."""
    ids = [0] * 100_000
    tokens = RowTokens(row=0, params=SamplingParams(), prompt_ids=ids, output_ids=[0, 0])
    repeats = Repeats(tokens, Breakers((), None), window=None)
    next_ids, lengths = repeats.continued(2)
    assert (next_ids.tolist(), lengths.tolist()) == ([0], [100_001])


@pytest.mark.parametrize(
    ("sent", "wanted"),
    [
        (None, DEFAULT_BREAKERS),
        ([], ()),
        ("", ()),
        ('["\\n", "x"]', ("\n", "x")),
        (["", "a"], ("a",)),
    ],
)
def test_breakers_of_a_request(sent: object, wanted: tuple[str, ...]) -> None:
    assert breakers_of(SamplingParams(extra_args={"dry_sequence_breakers": sent})) == wanted

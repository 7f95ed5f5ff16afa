"""frame_of: the special tokens of a pair of texts, found in one that was encoded."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.interfaces.tokenizer import PairFrame


def frame_of(
    ids: Sequence[int], texts: Sequence[int | None], types: Sequence[int] | None
) -> PairFrame:
    """Return the special tokens around and between two texts.

    `texts` says for each of `ids` whether it belongs to text 0 or 1 (None: a special token),
    `types` which type it has (None: the model takes no types).
    """
    first = [at for at, text in enumerate(texts) if text == 0]
    second = [at for at, text in enumerate(texts) if text == 1]
    between = slice(first[-1] + 1, second[0])
    is_told = types is not None and types[first[-1]] != types[second[0]]
    return PairFrame(
        before=tuple(ids[: first[0]]),
        between=tuple(ids[between]),
        after=tuple(ids[second[-1] + 1 :]),
        num_between_first=types[between].count(types[first[-1]]) if types and is_told else None,
    )

"""Checks of prompts and token ids, and prompt truncation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dovetail.errors import RequestError


def verify_ids(field: str, ids: Iterable[int], vocab_size: int) -> None:
    """Raise RequestError for a token id outside the vocabulary."""
    for token_id in ids:
        if type(token_id) is not int or not 0 <= token_id < vocab_size:
            raise RequestError(
                f"{token_id!r} is not a valid token id; valid ids are 0 to {vocab_size - 1}.",
                where=field,
            )


def verify_text(field: str, text: str) -> None:
    """Raise RequestError for text that cannot be encoded as UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(
            f"the text is not valid Unicode: {error.reason} at character {error.start}.",
            where=field,
            fix="send whole characters, not halves of surrogate pairs.",
        ) from None


def truncated(
    prompt_ids: Sequence[int],
    keep: int | None,
    max_model_tokens: int,
    max_tokens: int | None,
    *,
    keeps_start: bool = False,
) -> tuple[int, ...]:
    """Return the end (or start) of the prompt that truncate_prompt_tokens leaves.

    -1 leaves room for `max_tokens` after the prompt, but at most half the context. Raises:
    RequestError for 0, which would leave nothing.
    """
    if keep is None:
        return tuple(prompt_ids)
    if keep == 0:
        raise RequestError("must be -1 or at least 1.", where="truncate_prompt_tokens")
    if keep == -1:
        keep = max(1, max_model_tokens - min(max_tokens or 1, max_model_tokens // 2))
    return tuple(prompt_ids[:keep] if keeps_start else prompt_ids[-keep:])

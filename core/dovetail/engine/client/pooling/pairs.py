"""Two texts as one prompt, for cross-encoders.

The special tokens around and between them are those of the tokenizer's own pair template.
"""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.engine.client.pooling.input_processor import no_room, tokens_kept
from dovetail.engine.client.requests.prompt_checks import verify_text
from dovetail.engine.client.text.long_text import encoded
from dovetail.engine.context_length import PROMPT, verify_pooled
from dovetail.interfaces.tokenizer import Tokenizer


def pair_prompt(
    tokenizer: Tokenizer, first: str, second: str, *, max_tokens: int, truncate: int | None = None
) -> tuple[tuple[int, ...], int | None]:
    """Return the tokens of two texts, and how many belong to the first
    (PoolingParams.first_text_tokens). None if the model has no segment ids.

    `max_tokens` is the context length. `truncate` is the maximum number of tokens (-1: the
    context): the longer text is cut at its end to the length of the other, then both are; special
    tokens stay. Raises: RequestError
    """
    keep = tokens_kept(truncate, max_tokens)
    frame = tokenizer.pair_frame()
    num_special = len(frame.before) + len(frame.between) + len(frame.after)
    room = None if keep is None else keep - num_special
    if keep is not None and room is not None and room < 2:
        raise no_room(keep, num_special, num_special + 2)
    one, two = (_tokens(tokenizer, text, max_tokens, room) for text in (first, second))
    if room is not None:
        one, two = cut_to(one, two, room)
    ids = (*frame.before, *one, *frame.between, *two, *frame.after)
    verify_pooled(len(ids), max_tokens)
    if frame.num_between_first is None:
        return ids, None
    return ids, len(frame.before) + len(one) + frame.num_between_first


def _tokens(tokenizer: Tokenizer, text: str, max_tokens: int, room: int | None) -> Sequence[int]:
    """Return a text's tokens, at least the first `room`. Raises: RequestError"""
    verify_text(PROMPT, text)
    return encoded(
        tokenizer,
        text,
        add_special_tokens=False,
        max_tokens=max_tokens,
        keep=room,
        keeps_start=True,
        answers=False,
    )


def cut_to(
    first: Sequence[int], second: Sequence[int], room: int
) -> tuple[Sequence[int], Sequence[int]]:
    """Cut two texts to at most `room` tokens, the longer one first. If both must be cut, the longer
    one gets the odd token."""
    excess = len(first) + len(second) - room
    if excess <= 0:
        return first, second
    shorter = min(len(first), len(second), room // 2)
    if len(first) <= len(second):
        return first[:shorter], second[: room - shorter]
    return first[: room - shorter], second[:shorter]

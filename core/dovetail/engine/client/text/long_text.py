"""Tokenizes long texts: checks whether they fit into the context, and tokenizes only the part that
is needed.

Texts are cut into pieces at a space between two letters, where hardly any tokenizer merges. So the
sum of the pieces' token counts is close to the exact count, but only an estimate.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterator, Sequence

from dovetail.engine.context_length import context_length
from dovetail.errors import RequestError
from dovetail.interfaces.tokenizer import Tokenizer

LONG_TEXT_CHARS = 1 << 15
"""Longer texts are checked for their length before they are tokenized."""

PIECE_CHARS = 1 << 16
LEAST_CHARS = 1 << 12
CHARS_PER_TOKEN = 8
"""Initial estimate of the characters per token."""

SPARE_TOKENS = 64
"""The number of tokens next to a cut that may differ from those of the whole text."""

Rest = Callable[[], None]
CUT = re.compile(r"(?<=[^\W\d_]) (?=[^\W\d_])")


def no_rest() -> None:
    """Continue immediately."""


def encoded(
    tokenizer: Tokenizer,
    text: str,
    *,
    add_special_tokens: bool,
    max_tokens: int | None = None,
    keep: int | None = None,
    keeps_start: bool = False,
    answers: bool = True,
    plain: Sequence[tuple[int, int]] = (),
    rest: Rest = no_rest,
) -> Sequence[int]:
    """Return the tokens of a text, or with `keep` at least that many from its end or start.

    `max_tokens` is the context length; None: unlimited. `answers`: the answer must fit into it too.
    Control words in the ranges `plain` are ordinary text. `rest` is called between parts of a long
    text. Raises: RequestError
    """
    if keep and not plain:
        return _part(tokenizer, text, add_special_tokens, keep, keeps_start=keeps_start)
    if max_tokens is not None and len(text) > LONG_TEXT_CHARS:
        too_many_chars(
            len(text), tokenizer.longest_token_chars(), max_tokens, "prompt", answers=answers
        )
        check_fits(tokenizer, text, max_tokens, rest, answers=answers)
    if plain:
        return tokenizer.encode_with_plain(text, plain, add_special_tokens=add_special_tokens)
    ids = array("I")
    for part in tokenizer.encode_parts(text, add_special_tokens=add_special_tokens):
        ids.extend(part)
        rest()
    return ids


def max_kept_tokens(truncates_to: int | None, context: int) -> int | None:
    """Return the maximum that truncate_prompt_tokens keeps; None: all tokens."""
    if not truncates_to:
        return None
    return min(truncates_to, context) if truncates_to > 0 else context


def too_many_chars(
    num_chars: int,
    longest_token_chars: int | None,
    max_tokens: int,
    where: str,
    *,
    answers: bool = True,
) -> None:
    """Raise RequestError if a text has more characters than `max_tokens` tokens can hold."""
    if longest_token_chars is None or num_chars <= max_tokens * longest_token_chars:
        return
    raise RequestError(
        f"the text has {num_chars} characters, and a token of this model stands for at most "
        f"{longest_token_chars}; {context_length(max_tokens, answers=answers)}.",
        where=where,
        fix="shorten the text, or set truncate_prompt_tokens to -1.",
        code="context_length_exceeded",
    )


def check_fits(
    tokenizer: Tokenizer, text: str, max_tokens: int, rest: Rest, *, answers: bool = True
) -> None:
    """Raise RequestError for a text far too long once its pieces have more than `max_tokens`."""
    if len(text) <= max(2 * PIECE_CHARS, CHARS_PER_TOKEN * max_tokens):
        return
    num_tokens = num_spare = 0
    for piece in pieces(text):
        num_tokens += len(tokenizer.encode(piece, add_special_tokens=False))
        num_spare += SPARE_TOKENS
        rest()
        if num_tokens - num_spare > max_tokens:
            raise RequestError(
                f"the prompt has more than {num_tokens - num_spare} tokens; "
                f"{context_length(max_tokens, answers=answers)}.",
                where="prompt",
                fix="shorten the prompt, set truncate_prompt_tokens to -1, or start with a larger "
                "--max-model-len.",
                code="context_length_exceeded",
            )


def pieces(text: str) -> Iterator[str]:
    """Yield a text in pieces, cut between two words if possible."""
    start = 0
    while len(text) - start > 2 * PIECE_CHARS:
        found = CUT.search(text, start + PIECE_CHARS, start + 2 * PIECE_CHARS)
        end = found.start() if found else start + PIECE_CHARS
        yield text[start:end]
        start = end
    yield text[start:]


def _part(
    tokenizer: Tokenizer, text: str, add_special_tokens: bool, keep: int, *, keeps_start: bool
) -> Sequence[int]:
    """Return `keep` tokens of the end or start of a text; all tokens if it has fewer."""
    num_chars = max(LEAST_CHARS, CHARS_PER_TOKEN * keep)
    while num_chars < len(text):
        at = num_chars // 2 if keeps_start else len(text) - num_chars
        cut = CUT.search(text, at, at + num_chars // 2)
        if keeps_start:
            part = text[: cut.start() if cut else num_chars]
        else:
            part = text[cut.start() if cut else at :]
        ids = tokenizer.encode(part, add_special_tokens=add_special_tokens)
        if len(ids) >= keep + SPARE_TOKENS:
            return ids[:keep] if keeps_start else ids[-keep:]
        num_chars *= 2
    return tokenizer.encode(text, add_special_tokens=add_special_tokens)

"""Logprobs in the shapes of the three places that show them. Numbers are finite always."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dovetail.interfaces.step import TokenLogprobs
from dovetail.interfaces.tokenizer import Tokenizer
from dovetail.server.generate.chat_body import TokenLogprob, TopLogprob

LOWEST = -9999.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenNames:
    """How tokens are written: as their text, or as "token_id:N"."""

    tokenizer: Tokenizer
    writes_ids: bool = False

    def of(self, token_ids: Sequence[int]) -> list[str]:
        """Return the written form of each id."""
        if self.writes_ids:
            return [f"token_id:{token_id}" for token_id in token_ids]
        return self.tokenizer.tokens(token_ids)


def finite(logprob: float) -> float:
    """Return the logprob, no lower than LOWEST."""
    return max(logprob, LOWEST)


def chat_logprobs(
    positions: Sequence[TokenLogprobs], num_top: int, names: TokenNames
) -> list[TokenLogprob]:
    """Return OpenAI's chat logprobs, one entry per token."""
    return [_chat_entry(position, num_top, names) for position in positions]


def _chat_entry(position: TokenLogprobs, num_top: int, names: TokenNames) -> TokenLogprob:
    top_ids = position.top_ids[:num_top] if num_top >= 0 else position.top_ids
    token, *tops = names.of((position.token_id, *top_ids))
    return TokenLogprob(
        token=token,
        logprob=finite(position.logprob),
        bytes=_bytes(token),
        top_logprobs=[
            TopLogprob(token=text, logprob=finite(logprob), bytes=_bytes(text))
            for text, logprob in zip(tops, position.top_logprobs, strict=False)
        ],
    )


def _bytes(token: str) -> list[int] | None:
    """Return UTF-8 bytes; None for a piece of a character, whose bytes the text does not show."""
    return None if "\ufffd" in token else list(token.encode("utf-8", "surrogatepass"))


@dataclass(slots=True, kw_only=True)
class CompletionColumns:
    """Completion logprobs as columns that grow; `offset` is the text written before them."""

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


def completion_columns(
    positions: Sequence[TokenLogprobs | None],
    token_ids: Sequence[int],
    num_top: int,
    names: TokenNames,
    offset: int,
) -> CompletionColumns:
    """Return OpenAI's completion logprobs. A position of None is the prompt's first token."""
    tokens = names.of(token_ids)
    starts = []
    for token in tokens:
        starts.append(offset)
        offset += len(token)
    return CompletionColumns(
        text_offset=starts,
        token_logprobs=[None if p is None else finite(p.logprob) for p in positions],
        tokens=tokens,
        top_logprobs=[
            None if p is None else _top(p, token, num_top, names)
            for p, token in zip(positions, tokens, strict=True)
        ],
    )


def _top(position: TokenLogprobs, token: str, num_top: int, names: TokenNames) -> dict[str, float]:
    top_ids = position.top_ids[:num_top] if num_top >= 0 else position.top_ids
    pairs = zip(names.of(top_ids), position.top_logprobs, strict=False)
    found = {text: finite(logprob) for text, logprob in pairs}
    found.setdefault(token, finite(position.logprob))
    return found


def prompt_logprobs(
    positions: Sequence[TokenLogprobs], names: TokenNames
) -> list[dict[str, Any] | None]:
    """Return one dict per prompt token, the first of which has none."""
    return [None, *(_prompt_entry(position, names) for position in positions)]


def _prompt_entry(position: TokenLogprobs, names: TokenNames) -> dict[str, Any]:
    found: dict[str, Any] = {}
    ids = (position.token_id, *position.top_ids)
    logprobs = (position.logprob, *position.top_logprobs)
    ranks = (position.rank, *range(1, len(position.top_ids) + 1))
    for token_id, text, logprob, rank in zip(ids, names.of(ids), logprobs, ranks, strict=False):
        found.setdefault(
            str(token_id),
            {"logprob": finite(logprob), "rank": rank, "decoded_token": text},
        )
    return found

"""Logprobs of prompts, logprobs in the format of OpenAI's chat, and the text forms of tokens.

All numbers are finite.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dovetail.engine.client.results.logprobs import finite
from dovetail.errors import RequestError
from dovetail.interfaces.data.step import TokenLogprobs
from dovetail.interfaces.tokenizer import Tokenizer
from dovetail.server.generate.body.fields import Reply

BROKEN = "\ufffd"


class TopLogprob(Reply):
    """One candidate."""

    token: str
    logprob: float
    bytes: list[int] | None = None


class TokenLogprob(TopLogprob):
    """The sampled token and the most likely candidates."""

    top_logprobs: list[TopLogprob] = []


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenNames:
    """How tokens are written: as text, or as "token_id:N"."""

    tokenizer: Tokenizer
    writes_ids: bool = False

    def of(self, token_ids: Sequence[int]) -> list[str]:
        """Return the written form of each id."""
        if self.writes_ids:
            return [f"token_id:{token_id}" for token_id in token_ids]
        return self.tokenizer.tokens(token_ids)

    def bytes_of(self, token_ids: Sequence[int]) -> list[list[int]]:
        """Return the bytes of each token, also of one that is part of a character."""
        texts = self.tokenizer.tokens(token_ids)
        pieces = [i for i, text in zip(token_ids, texts, strict=True) if BROKEN in text]
        written = dict(zip(pieces, self.tokenizer.bytes_of(pieces), strict=True)) if pieces else {}
        return [
            list(written.get(token_id) or text.encode("utf-8", "surrogatepass"))
            for token_id, text in zip(token_ids, texts, strict=True)
        ]


def check_named_logprobs(*, is_on: bool) -> None:
    """Raise RequestError if logprob_token_ids is given without logprobs."""
    if not is_on:
        raise RequestError("needs logprobs to be on.", where="logprob_token_ids")


def prompt_logprobs(
    positions: Sequence[TokenLogprobs], names: TokenNames
) -> list[dict[str, Any] | None]:
    """Return one dict per prompt token; None for the first one."""
    return [None, *(_prompt_entry(position, names) for position in positions)]


def _prompt_entry(position: TokenLogprobs, names: TokenNames) -> dict[str, Any]:
    entry: dict[str, Any] = {}
    ids = (position.token_id, *position.top_ids)
    logprobs = (position.logprob, *position.top_logprobs)
    ranks = (position.rank, *range(1, len(position.top_ids) + 1))
    for token_id, text, logprob, rank in zip(ids, names.of(ids), logprobs, ranks, strict=False):
        entry.setdefault(
            str(token_id),
            {"logprob": finite(logprob), "rank": rank, "decoded_token": text},
        )
    return entry


def chat_logprobs(
    positions: Sequence[TokenLogprobs], num_top: int, names: TokenNames, *, is_named: bool = False
) -> list[TokenLogprob]:
    """Return OpenAI's chat logprobs, one entry per token. With `is_named` the request named the
    candidates, and the sampled token is added to them."""
    return [_chat_entry(position, num_top, names, is_named) for position in positions]


def _chat_entry(
    position: TokenLogprobs, num_top: int, names: TokenNames, is_named: bool
) -> TokenLogprob:
    top_ids = position.top_ids[:num_top] if num_top >= 0 else position.top_ids
    ids = (position.token_id, *top_ids)
    logprobs = (position.logprob, *position.top_logprobs)
    drawn, *tops = [
        TopLogprob(token=text, logprob=finite(logprob), bytes=data)
        for text, logprob, data in zip(names.of(ids), logprobs, names.bytes_of(ids), strict=False)
    ]
    if is_named and position.token_id not in top_ids:
        tops = [drawn, *tops]
    return TokenLogprob(**drawn.model_dump(), top_logprobs=tops)

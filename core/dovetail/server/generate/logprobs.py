"""Logprobs of a prompt, and how tokens are written. Numbers are finite always."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dovetail.engine.client.logprobs import finite
from dovetail.errors import RequestError
from dovetail.interfaces.step import TokenLogprobs
from dovetail.interfaces.tokenizer import Tokenizer
from dovetail.server.generate.bodies import SamplingFields


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


def check_named_logprobs(body: SamplingFields, is_on: bool, has_top: bool) -> None:
    """Raise RequestError for tokens that are named where no logprobs are told, or the most likely
    ones are to be told as well."""
    if not body.logprob_token_ids:
        return
    if not is_on:
        raise RequestError("needs logprobs to be on.", where="logprob_token_ids")
    if has_top:
        raise RequestError(
            "stands in the place of the most likely tokens.",
            where="logprob_token_ids",
            fix="leave top_logprobs out.",
        )


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

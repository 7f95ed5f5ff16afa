"""Logprobs in the shape of OpenAI's completions: columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dovetail.engine.client.logprobs import finite
from dovetail.interfaces.step import TokenLogprobs
from dovetail.server.generate.logprobs import TokenNames


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

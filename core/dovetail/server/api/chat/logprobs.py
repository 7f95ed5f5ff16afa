"""Logprobs in the shape of OpenAI's chat."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.engine.client.logprobs import finite
from dovetail.interfaces.step import TokenLogprobs
from dovetail.server.api.chat.protocol import TokenLogprob, TopLogprob
from dovetail.server.generate.logprobs import TokenNames


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

"""/tokenize with `content`: the token ids of a text in llama.cpp's format.

Source: the API page of llama.cpp's server, /tokenize.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from starlette.responses import Response

from dovetail.errors import RequestError
from dovetail.server.endpoint import HEADER, ModelText, header_value
from dovetail_plugins.apis.tokenize.protocol import TokenizeRequest


async def content_reply(text: ModelText, body: TokenizeRequest, ignored: Sequence[str]) -> Response:
    """Return the ids of a text, each with its piece if the request wants them. Raises:
    RequestError"""
    if body.prompt is not None or body.messages is not None:
        raise RequestError("give one of content, prompt and messages.", where="content")
    content = body.content or ""
    text.check_text("content")
    plain = () if body.parse_special else _places(content, text)
    ids = await text.tokenize(
        content, add_special_tokens=body.add_special, plain=plain, takes_any_length=True
    )
    tokens = (
        await text.threads.run(lambda: _pieces(text, ids), len(ids)) if body.with_pieces else ids
    )
    return Response(
        msgspec.json.encode({"tokens": list(tokens)}),
        media_type="application/json",
        headers={HEADER: header_value(ignored)} if ignored else {},
    )


def _places(content: str, text: ModelText) -> tuple[tuple[int, int], ...]:
    """Return the spans of the special tokens' texts, which are to be plain text."""
    found: list[tuple[int, int]] = []
    words = sorted(filter(None, text.vocabulary.tokenizer.facts().special_texts.values()), key=len)
    at = 0
    while at < len(content):
        word = next((word for word in reversed(words) if content.startswith(word, at)), "")
        if word:
            found.append((at, at + len(word)))
        at += len(word) or 1
    return tuple(found)


def _pieces(text: ModelText, ids: Sequence[int]) -> list[dict[str, Any]]:
    """Return the ids with what they write: text, or bytes that are not whole characters."""
    written = text.vocabulary.tokenizer.bytes_of(ids)
    return [{"id": i, "piece": _piece(data)} for i, data in zip(ids, written, strict=True)]


def _piece(data: bytes) -> str | list[int]:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return list(data)

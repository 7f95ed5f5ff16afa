"""FakeServer: a server behind `dovetail route`, without a network."""

from __future__ import annotations

import contextlib
import json
from argparse import Namespace
from collections.abc import AsyncIterator, Sequence
from typing import Any

from dovetail.json_values import InvalidJson, json_value


class FakeServer:
    """An upstream that notes what it gets, and answers in its own words."""

    def __init__(self, url: str, **words: Any) -> None:
        self.url, self.words = url, words
        self.num_open = self.num_failures = 0
        self.is_back = True
        self.got: list[tuple[dict[bytes, bytes], Any]] = []

    @property
    def hostname(self) -> str:
        return "127.0.0.1"

    def failed(self) -> None:
        self.num_failures += 1

    @contextlib.asynccontextmanager
    async def stream(
        self, method: str, target: bytes, headers: Sequence[Any], body: bytes
    ) -> AsyncIterator[Any]:
        self.got.append((dict(headers), _value_of(body)))
        words = self.words
        if target == b"/tokenize":
            words = {"tokens": [ord(letter) for letter in json.loads(body)["prompt"]]}
        content = json.dumps(words).encode()

        async def pieces() -> AsyncIterator[bytes]:
            yield content

        async def read() -> bytes:
            return content

        yield Namespace(status=200, headers=[(b"x-request-id", b"x")], pieces=pieces, read=read)

    async def is_healthy(self) -> bool:
        return True


def _value_of(body: bytes) -> Any:
    """Return what a body says, or the body itself where it is not JSON."""
    try:
        return json_value(body)
    except InvalidJson:
        return body

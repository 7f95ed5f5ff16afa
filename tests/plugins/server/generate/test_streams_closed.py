"""A stream that nobody sends, or whose sending is cancelled, leaves nothing open."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from starlette.requests import Request

from dovetail.server.generate.streaming import EventStream, StreamHead, cancel_on_disconnect
from dovetail.server.http.errors import ClientDisconnected
from support.serving import post_scope


class Owner:
    """Makes streams, and notes which of what they own is closed."""

    def __init__(self) -> None:
        self.closed: list[str] = []

    def stream(self, *, fails: bool = False, keep_alive_s: float = 0.0) -> EventStream:
        async def chunks() -> AsyncGenerator[bytes, None]:
            try:
                await asyncio.Event().wait()
                yield b""
            finally:
                await asyncio.sleep(0.01)
                self.closed.append("chunks")
                if fails:
                    raise RuntimeError("the chunks break at their end")

        owned = AsyncExitStack()
        owned.callback(self.closed.append, "owned")
        head = StreamHead(headers={}, request_id="r", keep_alive_s=keep_alive_s)
        return EventStream(chunks(), owned, head)


async def nothing_comes() -> Any:
    await asyncio.Event().wait()


async def client_leaves() -> Any:
    return {"type": "http.disconnect"}


async def drop(message: Any) -> None:
    await asyncio.sleep(0)


def test_a_stream_that_comes_after_its_client_left_is_closed() -> None:
    owner = Owner()

    async def work() -> EventStream:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return owner.stream()  # as wait_for does, whose result has come
        raise AssertionError

    async def main() -> None:
        with pytest.raises(ClientDisconnected):
            await cancel_on_disconnect(Request(post_scope("/"), client_leaves), work())

    asyncio.run(main())
    assert owner.closed == ["owned"]


@pytest.mark.parametrize("num_waits", range(8))
def test_a_stream_is_closed_whose_request_is_cancelled_as_it_comes(num_waits: int) -> None:
    owner, is_made, is_due = Owner(), asyncio.Event(), asyncio.Event()

    async def work() -> EventStream:
        await is_due.wait()
        is_made.set()
        return owner.stream()

    async def main() -> None:
        request = Request(post_scope("/"), nothing_comes)
        task = asyncio.ensure_future(cancel_on_disconnect(request, work()))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        is_due.set()
        for _ in range(num_waits):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})
        if task.cancelled():
            assert owner.closed == ["owned"] * is_made.is_set()
        else:
            assert isinstance(task.result(), EventStream) and not owner.closed

    asyncio.run(main())


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("num_cancels", [1, 2, 3])
@pytest.mark.parametrize("keep_alive_s", [0.0, 0.001])
def test_a_stream_that_is_cancelled_closes_all_it_has(
    fails: bool, num_cancels: int, keep_alive_s: float
) -> None:
    owner = Owner()

    async def main() -> None:
        stream = owner.stream(fails=fails, keep_alive_s=keep_alive_s)
        task = asyncio.ensure_future(stream(post_scope("/"), nothing_comes, drop))
        await asyncio.sleep(0.02)
        for _ in range(num_cancels):
            task.cancel()
            await asyncio.sleep(0.002)
        with pytest.raises((asyncio.CancelledError, RuntimeError)):
            await task

    asyncio.run(main())
    assert owner.closed == ["chunks", "owned"]

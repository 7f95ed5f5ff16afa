"""BodyLimitMiddleware: limits how large a body may be, how long it may take, how fast it is read.

Closing a connection with unread bytes would discard the answer. So that a refusal reaches its
client, the rest of the body is first read and dropped for a while. During generation, unread bytes
stay with the sleeping sender (TCP back-pressure): senders and readers at full speed would take the
processors from the streams.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from types import MappingProxyType

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dovetail.server.http.errors import Problem, problem

logger = logging.getLogger("dovetail.server")

BODY_LIMIT_S = 60.0
"""How long a body may take, plus the time for its bytes at the minimum rate."""

LEAST_BYTES_PER_S = 64 * 1024
SMALL_BYTES = 1 << 17
BYTES_PER_S = 4 * 2**20
"""The rate per core at which all large bodies together are read during generation. One part holds
the event loop for less than a millisecond."""
MOST_BYTES_PER_S = 64 * 2**20
"""The limit for any number of cores: one event loop reads all bodies."""

LINGER_S = 30.0
LINGER_BYTES = 256 * 2**20
"""How long, and how much of, a refused body is read and dropped."""


def bytes_per_s(num_cores: int, num_servers: int) -> float:
    """Return how fast each HTTP process reads large bodies during generation."""
    return min(BYTES_PER_S * num_cores / num_servers, MOST_BYTES_PER_S)


class _BodyRefused(Exception):
    """The body is too large or too slow."""


class BodyLimitMiddleware:
    """Reads at most `max_bytes` of a body, whatever its headers say, and stops waiting for a slow
    one. While the server `is_busy`, large bodies and dropped bytes are read at `bytes_per_s` in
    total. `max_bytes_of` has the limits of paths with another one, and of paths one level
    below them."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        max_bytes: int,
        bytes_per_s: float,
        is_busy: Callable[[], bool],
        max_bytes_of: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._max_bytes_of = max_bytes_of
        self._pace = _Pace(bytes_per_s, is_busy)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        length = Headers(scope=scope).get("content-length", "")
        path = str(scope["path"]).removeprefix(str(scope.get("root_path", "")))
        others = self._max_bytes_of
        max_bytes = others.get(path) or others.get(path.rpartition("/")[0], self._max_bytes)
        if length.isdecimal() and int(length[:20]) > max_bytes:
            await self._refuse(_too_large(max_bytes), scope, receive, send)
            return
        await self._limited(max_bytes, scope, receive, send)

    async def _limited(self, max_bytes: int, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the app; if its body is refused, the refusal replaces the app's own answer."""
        body = _Body(receive, max_bytes, self._pace)
        has_started = False

        async def pass_on(message: Message) -> None:
            nonlocal has_started
            if has_started or not body.is_refused:
                has_started = True
                await send(message)

        try:
            await self._app(scope, body.receive, pass_on)
        except _BodyRefused:
            logger.debug("a body was cut off at %d bytes", body.num_bytes)
        if body.is_refused and not has_started:
            found = _too_large(max_bytes) if body.is_too_large else _TOO_SLOW
            await self._refuse(found, scope, receive, send)

    async def _refuse(self, found: Problem, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, and end the answer only after the client has sent the rest of its body."""
        response = found.response(scope)

        async def hold_open(message: Message) -> None:
            if message["type"] == "http.response.body":
                message = {**message, "more_body": True}
            await send(message)

        await response(scope, receive, hold_open)
        if Headers(scope=scope).get("expect") is None:
            await _drop_rest(receive, self._pace)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _too_large(max_bytes: int) -> Problem:
    return problem(
        413,
        f"the request body is above {max_bytes} bytes.",
        code="body_too_large",
        headers={"Connection": "close"},
    )


class _Pace:
    """The shared rate limit of all large bodies."""

    def __init__(self, bytes_per_s: float, is_busy: Callable[[], bool]) -> None:
        self._bytes_per_s = bytes_per_s
        self._is_busy = is_busy
        self._next_s = 0.0

    async def rest(self, num_bytes: int) -> None:
        """Wait as long as the rate requires after `num_bytes`."""
        now_s = asyncio.get_running_loop().time()
        at_s = max(now_s, self._next_s)
        if self._is_busy():
            self._next_s = at_s + num_bytes / self._bytes_per_s
            await asyncio.sleep(self._next_s - now_s)


class _Body:
    """The body of one request while it arrives, counted and timed."""

    def __init__(self, receive: Receive, max_bytes: int, pace: _Pace) -> None:
        self.num_bytes = 0
        self.is_too_large = self.is_too_slow = False
        self._receive = receive
        self._max_bytes = max_bytes
        self._pace = pace
        self._is_whole = False
        self._waited_s = 0.0

    @property
    def is_refused(self) -> bool:
        """Return whether reading has stopped."""
        return self.is_too_large or self.is_too_slow

    async def receive(self) -> Message:
        """Return the next message. Raises: _BodyRefused"""
        if self._is_whole:
            return await self._receive()
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        left_s = BODY_LIMIT_S + self.num_bytes / LEAST_BYTES_PER_S - self._waited_s
        try:
            async with asyncio.timeout(max(left_s, 0.0)):
                message = await self._receive()
        except TimeoutError:
            self.is_too_slow = True
            raise _BodyRefused from None
        self._waited_s += loop.time() - started_s
        self.num_bytes += len(message.get("body", b""))
        self._is_whole = not message.get("more_body", False)
        if self.num_bytes > self._max_bytes:
            self.is_too_large = True
            raise _BodyRefused
        if self.num_bytes > SMALL_BYTES:
            await self._pace.rest(len(message.get("body", b"")))
        return message


async def _drop_rest(receive: Receive, pace: _Pace) -> None:
    """Read and discard the rest of a body, within the limits."""
    num_bytes = 0
    try:
        async with asyncio.timeout(LINGER_S):
            while num_bytes < LINGER_BYTES:
                message = await receive()
                num_bytes += len(message.get("body", b""))
                if not message.get("more_body", False):
                    return
                await pace.rest(len(message.get("body", b"")))
    except TimeoutError:
        logger.debug("a refused body still came after %g s", LINGER_S)


_TOO_SLOW = problem(
    408,
    f"the request body took too long: more than {BODY_LIMIT_S:g} s and a second for every "
    f"{LEAST_BYTES_PER_S} bytes.",
    code="body_too_slow",
    headers={"Connection": "close"},
)

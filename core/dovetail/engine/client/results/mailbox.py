"""Mailbox: a queue of one request's outputs, merged if the consumer is slow.

So memory is bounded by the request itself, however slowly a client reads.
"""

from __future__ import annotations

import asyncio

from dovetail.engine.client.results.outputs import RequestOutput, merge
from dovetail.errors import DovetailError


class Mailbox:
    """Filled and emptied in one event loop. `has_begun`: something was put in. `num_deaths` counts
    the engines that have died with the request."""

    __slots__ = ("_error", "_pending", "_waiter", "has_begun", "num_deaths")

    def __init__(self, num_deaths: int = 0) -> None:
        self.has_begun = False
        self.num_deaths = num_deaths
        self._pending: list[RequestOutput] = []
        self._error: DovetailError | None = None
        self._waiter: asyncio.Future[None] | None = None

    def put(self, output: RequestOutput) -> None:
        """Add an output."""
        self.has_begun = True
        self._pending.append(output)
        self._wake()

    def fail(self, error: DovetailError) -> None:
        """End with an error, after the pending outputs. The first error wins."""
        if self._error is None:
            self._error = error
        self._wake()

    async def get(self) -> RequestOutput:
        """Return everything since the last call as one output.

        Raises: the error of `fail`, once nothing is pending.
        """
        while not self._pending:
            if self._error is not None:
                raise self._error
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        pending, self._pending = self._pending, []
        return merge(pending)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

"""Calls: one client's pending operations on an engine, other than generation.

Knows the result types of operations, not their meaning.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import TypeVar, cast

from dovetail.engine.faults import error_of
from dovetail.engine.messages import AnyOperation, AnyResult, Call, Operation, Return
from dovetail.errors import DovetailError, Overloaded

Result = TypeVar("Result")


class Calls:
    """The pending calls, by id. Used within one event loop."""

    def __init__(self, send: Callable[[Call], None]) -> None:
        self._send = send
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[AnyResult]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    async def call(self, operation: Operation[Result], timeout_s: float | None = None) -> Result:
        """Run an operation in the engine; return its result.

        If the caller is cancelled or `timeout_s` passes, the engine still completes the operation.
        Raises: any error from the engine; EngineDead; Overloaded after `timeout_s`
        """
        call_id = next(self._ids)
        returned = self._waiting[call_id] = asyncio.get_running_loop().create_future()
        try:
            self._send(Call(call_id, cast(AnyOperation, operation)))
            async with asyncio.timeout(timeout_s):
                return cast(Result, await returned)
        except TimeoutError:
            raise Overloaded(f"the engine gave no answer within {timeout_s:g} s.") from None
        finally:
            del self._waiting[call_id]

    def take(self, message: Return) -> None:
        """Deliver a call's result to its caller, if it still waits. Mutates: self"""
        returned = self._waiting.get(message.id)
        if returned is None or returned.done():
            return
        if message.fault is None:
            returned.set_result(message.result)
        else:
            returned.set_exception(error_of(message.fault))

    def fail(self, error: DovetailError) -> None:
        """Fail all pending calls with an error. Mutates: self"""
        for returned in self._waiting.values():
            if not returned.done():
                returned.set_exception(error)

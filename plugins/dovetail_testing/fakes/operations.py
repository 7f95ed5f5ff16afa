"""FakeOperations: operations that a fake engine notes."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from dovetail.engine.messages import EngineCondition, EngineStatus, Operation, Ping, Resume
from dovetail.interfaces.executor import UPDATE_WEIGHTS, WorkerCall


class FakeOperations:
    """The part of AsyncEngine that has two engines perform operations."""

    def __init__(self) -> None:
        self.condition = EngineCondition()
        self.operations: list[Operation[Any]] = []
        self.call_fault: Exception | None = None
        self.worker_calls: list[WorkerCall] = []

    async def call_each(self, operation: Operation[Any], timeout_s: float | None = None) -> Any:
        """Note an operation of two engines; the first is paused until Resume."""
        if isinstance(operation, Ping):
            first = EngineStatus(
                num_steps=0, num_running=0, num_waiting=0, condition=self.condition
            )
            return [first, structs.replace(first, condition=EngineCondition())]
        self.operations.append(operation)
        self.condition = EngineCondition(is_paused=not isinstance(operation, Resume))
        return [None, None]

    async def collective_rpc(self, call: WorkerCall) -> list[Any]:
        """Record the call; two ranks answer with it. Raises: the test's exception."""
        if self.call_fault is not None:
            raise self.call_fault
        self.worker_calls.append(call)
        if call.method == UPDATE_WEIGHTS:
            self.condition = EngineCondition(weights=call.kwargs)
        return [{"rank": rank, "method": call.method} for rank in range(2)]

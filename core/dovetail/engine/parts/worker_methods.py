"""WorkerMethods: runs methods of the ranks' workers, which may replace their weights."""

from __future__ import annotations

from typing import Any

from dovetail.engine.messages import AnyOperation, CallWorkers, WorkerAnswers
from dovetail.engine.parts.part import Engine, EnginePart
from dovetail.errors import EngineDead, RequestError
from dovetail.interfaces.executor import (
    DROP_WEIGHTS,
    READ_WEIGHTS,
    UPDATE_WEIGHTS,
    Executor,
    WorkerCall,
)


class WorkerMethods(EnginePart):
    """Calls of one engine's workers, and the path and version of new weights."""

    def __init__(self, executor: Executor, engine: Engine) -> None:
        self._executor = executor
        self._engine = engine
        self._weights: dict[str, Any] = {}

    def perform(self, operation: AnyOperation) -> Any:
        """Run a method on the workers of all ranks, after the steps in flight. New weights are used
        by all ranks or by none; then nothing computed by the old ones is reused.

        Raises: RequestError; EngineDead if only some ranks use new weights
        """
        if not isinstance(operation, CallWorkers):
            return NotImplemented
        call, weights = operation.call, operation.call.kwargs
        if call.method != UPDATE_WEIGHTS:
            return WorkerAnswers(self._executor.collective_rpc(call))
        try:
            self._executor.collective_rpc(
                WorkerCall(method=READ_WEIGHTS, args=call.args, kwargs=weights)
            )
        except RequestError:
            self._executor.collective_rpc(WorkerCall(method=DROP_WEIGHTS))
            raise
        if weights.get("running") == "abort":
            self._engine.abort_all()
        try:
            answers = self._executor.collective_rpc(
                WorkerCall(method=UPDATE_WEIGHTS, kwargs=weights)
            )
        except RequestError as error:
            raise EngineDead(f"its weights are partly new, partly old: {error.what}") from error
        self._weights = weights
        self._engine.reset_prefix_cache()
        return WorkerAnswers(answers)

    def describe(self, condition: dict[str, Any], repeats: list[AnyOperation]) -> None:
        """Add the weights, and how they are read again. Mutates: condition, repeats"""
        condition["weights"] = self._weights
        if self._weights:
            repeats.append(CallWorkers(WorkerCall(method=UPDATE_WEIGHTS, kwargs=self._weights)))

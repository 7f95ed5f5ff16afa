"""StopConditions: the plugins that may end an answer because of its tokens."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail import registry
from dovetail.engine.active_request import ActiveRequest
from dovetail.engine.parts.part import EnginePart
from dovetail.errors import RequestError
from dovetail.interfaces.data.spec import Selection
from dovetail.interfaces.stop_condition import StopCondition
from dovetail.registry.blame import described


class StopConditions(EnginePart):
    """Has each arriving request followed by the conditions that it uses."""

    def __init__(self, selections: Sequence[Selection]) -> None:
        self._conditions: list[StopCondition] = [registry.make(one) for one in selections]

    def receive(self, active: ActiveRequest) -> None:
        """Start to follow a request. Raises: RequestError if a plugin fails. Mutates: active"""
        request = active.request
        if request.pooling is not None:
            return
        try:
            found = [(one, one.watch(request.sampling)) for one in self._conditions]
        except Exception as error:
            what = f"a stop condition raised: {described(error)}"
            raise RequestError(what, where=request.request_id, status=500) from error
        request.conditions = tuple((one, watch) for one, watch in found if watch is not None)

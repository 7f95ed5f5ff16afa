"""PartialPrefills: decides whose prompt may be computed in chunks if their number is limited.

A prompt is chunked while a step leaves some of it for later; decodes and prompts that one step
finishes need no turn.
"""

from __future__ import annotations

from collections.abc import Iterable

from dovetail.interfaces.data.schedule_spec import ScheduleSpec
from dovetail.interfaces.scheduler import RequestState


class PartialPrefills:
    """How many more prompts may be computed in parts now; None: any number."""

    __slots__ = ("_spec", "long_left", "parts_left")

    def __init__(self, spec: ScheduleSpec, running: Iterable[RequestState]) -> None:
        self._spec = spec
        self.parts_left = spec.max_partial
        self.long_left = spec.max_long_partial
        if self.parts_left is None and self.long_left is None:
            return
        for request in running:
            if request.num_computed_tokens < request.num_tokens:
                self.take(request)

    @property
    def has_room(self) -> bool:
        """Return whether a prompt may start that this step does not finish."""
        return self.parts_left is None or self.parts_left > 0

    def must_wait(self, request: RequestState) -> bool:
        """Return whether this is a long prompt and others have all the turns of such."""
        return self.long_left is not None and self.long_left <= 0 and self._is_long(request)

    def take(self, request: RequestState) -> None:
        """Count a prompt in parts. Mutates: self"""
        if self.parts_left is not None:
            self.parts_left -= 1
        if self.long_left is not None and self._is_long(request):
            self.long_left -= 1

    def _is_long(self, request: RequestState) -> bool:
        return request.num_tokens > self._spec.long_prompt_tokens

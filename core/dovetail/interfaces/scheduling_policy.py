"""SchedulingPolicy: the order of waiting requests, and which one to preempt when blocks run out.

A policy sees read-only views and returns keys; it can neither lose a request nor touch a block.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, Protocol

from dovetail.interfaces.plugin import Plugin


class RequestView(Protocol):
    """A request as a policy may see it. Times are seconds of one monotonic clock."""

    @property
    def request_id(self) -> str: ...
    @property
    def priority(self) -> int: ...
    @property
    def arrival_s(self) -> float: ...
    @property
    def num_prompt_tokens(self) -> int: ...
    @property
    def num_computed_tokens(self) -> int: ...
    @property
    def num_tokens(self) -> int: ...
    @property
    def num_preemptions(self) -> int: ...


class SchedulingPolicy(Plugin):
    """Orders requests by keys: smaller keys run earlier, the largest running one is preempted."""

    interface_version: ClassVar[int] = 1

    def __init__(self, options: Any) -> None:
        self.options = options

    @abstractmethod
    def key(self, request: RequestView) -> tuple[float, ...]:
        """Return the sort key of a request. Called once, when the request arrives.

        The parts are finite numbers. Ties are broken by arrival. A waiting request never evicts a
        running one with a smaller or equal key.
        """

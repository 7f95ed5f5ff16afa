"""SchedulingPolicy: the order of waiting requests, and which one to preempt when blocks run out.

A policy sees read-only views and returns keys; it can neither lose a request nor touch a block.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, Protocol

from dovetail.interfaces.plugin import Plugin


class RequestView(Protocol):
    """What never changes about a request. Times are seconds of one monotonic clock. `max_tokens` is
    the length, prompt included, at which it surely ends."""

    @property
    def request_id(self) -> str: ...
    @property
    def priority(self) -> int: ...
    @property
    def arrival_s(self) -> float: ...
    @property
    def num_prompt_tokens(self) -> int: ...
    @property
    def max_tokens(self) -> int: ...


class RequestNow(RequestView, Protocol):
    """A request at the time `now_s` (the time before it was queued not counted). The first
    `num_prefix_tokens` of its `num_tokens` tokens need no computation: they are computed, or for a
    waiting one in the prefix cache or in host blocks."""

    @property
    def now_s(self) -> float: ...
    @property
    def num_tokens(self) -> int: ...
    @property
    def num_computed_tokens(self) -> int: ...
    @property
    def num_prefix_tokens(self) -> int: ...
    @property
    def num_preemptions(self) -> int: ...


class SchedulingPolicy(Plugin):
    """Orders requests by keys: smaller keys run earlier, the largest running one is preempted.

    With `keys_move` false a key is asked once, when the request arrives, and may depend on the
    fields of `RequestView` alone. With `keys_move` true it is asked again: of running requests
    before each plan, of waiting ones before some of them start, and of a preempted one. A scheduler
    may limit how many waiting requests it asks about at a time, so keys of different moments are
    compared: let a key say when something is due, not how long it has waited.
    """

    interface_version: ClassVar[int] = 1
    keys_move: ClassVar[bool] = False

    def __init__(self, options: Any) -> None:
        self.options = options

    @abstractmethod
    def key(self, request: RequestNow) -> tuple[float, ...]:
        """Return the sort key of a request: finite numbers, as many for every request.

        Ties are broken by arrival. A waiting request never evicts a running one.
        """

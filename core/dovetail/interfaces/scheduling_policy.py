"""SchedulingPolicy: the order of waiting requests, and which one to preempt when blocks run out.

A policy sees read-only views and returns keys; it can neither lose a request nor touch a block.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable
from typing import Any, ClassVar, Protocol

from dovetail.interfaces.plugin import Plugin


class RequestView(Protocol):
    """What never changes about a request. Times are seconds of one monotonic clock. `max_tokens` is
    the length, prompt included, at which it surely ends. `owner` ("": unknown) is whom it is from,
    `weight` the share of the engine that this owner should have among others, 1 by default."""

    @property
    def request_id(self) -> str: ...
    @property
    def owner(self) -> str: ...
    @property
    def weight(self) -> float: ...
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

    With `has_lines` requests wait in lines, such as one for each owner. `key` orders the requests
    of one line, and is asked once. Requests of different lines are ordered by `line_key`, which may
    change when the line opens or is served. So 10,000 waiting requests cost no more than one.
    """

    interface_version: ClassVar[int] = 1
    keys_move: ClassVar[bool] = False
    has_lines: ClassVar[bool] = False

    def __init__(self, options: Any) -> None:
        self.options = options

    @abstractmethod
    def key(self, request: RequestNow) -> tuple[float, ...]:
        """Return the sort key of a request: finite numbers, as many for every request.

        Ties are broken by arrival. A waiting request evicts a running one only by `makes_way`.
        """

    def line(self, request: RequestView) -> Hashable:
        """Return the line in which a request waits."""
        return None

    def line_key(self, line: Hashable) -> tuple[float, ...]:
        """Return the sort key of a line that has been opened: finite numbers, as many for every
        line. Of equal ones the line that opened last goes first."""
        return ()

    def opened(self, line: Hashable, request: RequestView) -> None:
        """Note that a request waits in a line without another. Mutates: self"""

    def closed(self, line: Hashable) -> None:
        """Note that no request waits in a line any more; some may run. Mutates: self"""

    def served(self, line: Hashable, num_prompt_tokens: int, num_answer_tokens: int) -> None:
        """Note what requests of a line got: tokens of a prompt that starts, less those that were
        cached, or new tokens of answers. Mutates: self"""

    def makes_way(self, line: Hashable, num_running: int, other: Hashable, num_other: int) -> bool:
        """Return whether a running request of the line `other`, which has the largest key, is
        preempted if the first waiting request, of `line`, has no room without that."""
        return False

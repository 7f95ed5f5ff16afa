"""Router: chooses the engine for a request if several engines serve one model.

It sees each engine's load and the request's tokens, and returns a number; it can neither lose nor
change a request. Every API process has a router of its own.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from dovetail.interfaces.kv_event_publisher import Event
from dovetail.interfaces.plugin import Plugin


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterFacts:
    """Facts that do not change while the server runs.

    An engine's prefix cache holds at most `cache_tokens` tokens (0: no cache) in blocks of
    `block_tokens`; an engine runs at most `max_rows` requests at once. `process` is the number of
    this API process: routers can start at different engines, to spread the first requests.
    """

    num_engines: int
    block_tokens: int
    cache_tokens: int
    max_rows: int
    process: int = 0


class EngineView(Protocol):
    """What a router may know about an engine that takes requests.

    `number` counts from 0. `num_running` and `num_waiting` count completions; those just sent count
    as waiting. Counts of other API processes' requests are up to 0.1 s old. `pending_tokens` are
    the prompt tokens, cached ones included, of requests without a first token. `kv_usage` is the
    share of the KV cache that requests hold, 0 to 1.
    """

    @property
    def number(self) -> int: ...
    @property
    def num_running(self) -> int: ...
    @property
    def num_waiting(self) -> int: ...
    @property
    def pending_tokens(self) -> int: ...
    @property
    def kv_usage(self) -> float: ...


@dataclass(frozen=True, slots=True)
class RoutedRequest:
    """A request without an engine. Requests share cached prefixes only if their `cache_salt` is
    equal."""

    prompt_ids: Sequence[int]
    cache_salt: str = ""
    num_completions: int = 1


class Router(Plugin):
    """One object per API process, called by one thread, once per request; a call should take
    microseconds. A router that raises, or returns an invalid number, ends that request with an
    error."""

    interface_version: ClassVar[int] = 1
    known_capabilities: ClassVar[Mapping[str, str]] = {
        "loads": "spares engines that have much to do",
        "prefixes": "sends requests where their prefix is cached",
    }

    @abstractmethod
    def __init__(self, options: Any, facts: RouterFacts) -> None:
        """Prepare to choose among engines 0 to `num_engines` - 1."""

    @abstractmethod
    def choose(self, request: RoutedRequest, engines: Sequence[EngineView]) -> int:
        """Return the number of one of `engines`: those that take requests now, at least one, in
        order of their numbers.

        The request goes there. `prompt_ids` is the request's own: never change it.
        """

    def forget(self, engine: int) -> None:
        """Note that this engine's cache is now empty."""

    def learn(self, engine: int, events: Sequence[Event] | None) -> None:
        """Process an engine's prefix cache events, complete since its last "all cleared"; None:
        earlier events are invalid. Called if engines publish KV events. Mutates: self"""
        del engine, events

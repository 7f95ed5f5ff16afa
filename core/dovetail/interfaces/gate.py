"""Gate: who sends a request, what they may do, and how much; it sees every request first.

Imports no web framework: an application is an ASGI callable.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from dovetail.interfaces.plugin import Plugin

Output = TypeVar("Output")


@dataclass(frozen=True, slots=True, kw_only=True)
class GateFacts:
    """A server's gate. `frontend` holds the flags of the HTTP server; `is_open` returns whether a
    scope's route needs no key; `models` are the served names (none: a gateway's)."""

    frontend: Any
    is_open: Callable[[Any], bool]
    models: tuple[str, ...] = ()


class Visit(Protocol):
    """A request that the gate has let in. The engine's client knows its prompts, a gateway only the
    model that it names. No answer is longer than `max_answer_tokens`, and no request has a smaller
    (more urgent) priority than `min_priority` (None: no limit)."""

    @property
    def max_answer_tokens(self) -> int | None: ...
    @property
    def min_priority(self) -> int | None: ...

    def check_model(self, name: str) -> None:
        """Raise RequestError if the owner may not use a model."""

    def check_admin(self) -> None:
        """Raise RequestError if the owner may not change the server."""

    def follow(
        self, num_prompt_tokens: int, adapter: str, outputs: AsyncGenerator[Output, None]
    ) -> AsyncGenerator[Output, None]:
        """Return the outputs (RequestOutput) of a prompt, which goes to an engine when the first is
        requested. Raises: RequestError, then, if the owner's limits are reached"""


class Gate(Plugin):
    """One object in each process that answers HTTP requests.

    For each request that it lets in it names the owner (`observability.caller.enter`).
    """

    @abstractmethod
    def __init__(self, options: Any, facts: GateFacts) -> None:
        """Raises: ConfigError for settings that cannot work"""

    @classmethod
    def check(cls, frontend: Any) -> None:
        """Raise ConfigError for flags that cannot work. Called before anything else is started;
        imports nothing that counts requests."""

    @abstractmethod
    async def enter(self, app: Any, scope: Any, receive: Any, send: Any) -> None:
        """Pass a request on to the application, or answer it with an error. Calls without an HTTP
        request (scope type "lifespan") are always passed on."""

    def knows(self, owner: str) -> bool:
        """Return whether stored work of an owner (`http.owner`) may still be done."""
        return True

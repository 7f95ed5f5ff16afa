"""Routers for the conformance kit: a right one, and others that each break one clause."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Any

from dovetail.interfaces.plugin import Info
from dovetail.interfaces.router import EngineView, RoutedRequest, Router, RouterFacts

SAVED_TOKENS = 512
MOST_KEPT = 50
QUICK_CHOICES = 600


class RightRouter(Router):
    """Knows where the last few beginnings went; the others derive from it."""

    info = Info(summary="follows whole beginnings")
    capabilities = frozenset({"loads", "prefixes"})

    def __init__(self, options: Any, facts: RouterFacts) -> None:
        self._homes: dict[Any, int] = {}
        self._turn = 0

    def choose(self, request: RoutedRequest, engines: Sequence[EngineView]) -> int:
        """Return the engine with the least to do, less what the beginning's last one saves."""
        key = self.key(request)
        home = self._homes.pop(key, None)
        self._turn += 1
        chosen = min(engines, key=lambda engine: self.cost(engine, home)).number
        self._homes[key] = chosen
        if len(self._homes) > MOST_KEPT:
            del self._homes[next(iter(self._homes))]
        return chosen

    def key(self, request: RoutedRequest) -> Any:
        """Return the beginning."""
        return request.cache_salt, tuple(request.prompt_ids[:400])

    def cost(self, engine: EngineView, home: int | None) -> tuple[int, int]:
        """Return the tokens to compute before this one's; of equals the next in turn is least."""
        tokens = engine.pending_tokens + 16 * engine.num_running
        return tokens - SAVED_TOKENS * (engine.number == home), (engine.number + self._turn) % 5

    def forget(self, engine: int) -> None:
        """Drop the beginnings that went there."""
        self._homes = {key: home for key, home in self._homes.items() if home != engine}


class ForeignRouter(RightRouter):
    """Takes the position in the list for the number."""

    info = Info(summary="names positions")

    def choose(self, request: RoutedRequest, engines: Sequence[EngineView]) -> int:
        """Return a position."""
        return len(request.prompt_ids) % len(engines)


class FavouringRouter(RightRouter):
    """Of equals always takes the first."""

    info = Info(summary="favours the first engine")

    def cost(self, engine: EngineView, home: int | None) -> tuple[int, int]:
        """Return the tokens, then the number."""
        return super().cost(engine, home)[0], engine.number


class ScribblingRouter(RightRouter):
    """Sorts the prompt."""

    info = Info(summary="changes the prompt")

    def key(self, request: RoutedRequest) -> Any:
        """Return the beginning of the sorted prompt."""
        if isinstance(request.prompt_ids, list):
            request.prompt_ids.sort()
        return super().key(request)


class HoardingRouter(RightRouter):
    """Keeps every prompt."""

    info = Info(summary="keeps all prompts")

    def __init__(self, options: Any, facts: RouterFacts) -> None:
        super().__init__(options, facts)
        self._all: list[tuple[int, ...]] = []

    def key(self, request: RoutedRequest) -> Any:
        """Return the beginning, and keep the whole."""
        self._all.append((*request.prompt_ids, 0))
        return super().key(request)


class MoodyRouter(RightRouter):
    """Draws lots."""

    info = Info(summary="draws lots")

    def choose(self, request: RoutedRequest, engines: Sequence[EngineView]) -> int:
        """Return any engine."""
        return random.SystemRandom().choice(engines).number


class SlowRouter(RightRouter):
    """Thinks for long."""

    info = Info(summary="thinks for long")

    def choose(self, request: RoutedRequest, engines: Sequence[EngineView]) -> int:
        """Return the right engine, the later ones too late."""
        if self._turn > QUICK_CHOICES:
            time.sleep(0.008)
        return super().choose(request, engines)


class DeafRouter(RightRouter):
    """Never looks at loads, and says that it does."""

    info = Info(summary="does not look at loads")

    def cost(self, engine: EngineView, home: int | None) -> tuple[int, int]:
        """Return the turn."""
        return 0, (engine.number + self._turn) % 5


class LoyalRouter(RightRouter):
    """Follows a prefix whatever its engine has to do."""

    info = Info(summary="follows prefixes always")

    def cost(self, engine: EngineView, home: int | None) -> tuple[int, int]:
        """Return the tokens unless the prefix is there."""
        tokens, turn = super().cost(engine, home)
        return (-1 if engine.number == home else tokens), turn


class UnawareRouter(RightRouter):
    """Never follows a prefix, and says that it does."""

    info = Info(summary="follows no prefix")

    def cost(self, engine: EngineView, home: int | None) -> tuple[int, int]:
        """Return the tokens."""
        return super().cost(engine, None)


class SaltlessRouter(RightRouter):
    """Takes prompts of different salts for the same."""

    info = Info(summary="does not look at salts")

    def key(self, request: RoutedRequest) -> Any:
        """Return the beginning."""
        return tuple(request.prompt_ids[:400])


class RememberingRouter(RightRouter):
    """Never forgets."""

    info = Info(summary="never forgets")

    def forget(self, engine: int) -> None:
        """Do nothing."""

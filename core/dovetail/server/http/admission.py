"""Admission: the limit on requests inside the server, checked before any work is done on one.

A full queue refuses in microseconds. Sequences (prompts times n) are counted, not HTTP requests.
"""

from __future__ import annotations

from typing import Protocol

from dovetail.errors import EngineDead, Overloaded

RETRY_AFTER_S = 1.0


class EngineLoad(Protocol):
    """The part of the engine that admission reads."""

    @property
    def death_reason(self) -> str | None:
        """Return why generation is no longer possible."""

    @property
    def is_alive(self) -> bool:
        """Return whether generation is possible."""

    def load(self) -> tuple[int, int]:
        """Return (running, waiting)."""

    def pending_tokens(self) -> int:
        """Return the prompt tokens that wait."""


class Ticket:
    """The permission of one request to be inside, released by `close`. Enter it immediately, with
    `with` or an exit stack, which closes it. `close` may be called twice."""

    __slots__ = ("_admission", "_size")

    def __init__(self, admission: Admission, size: int) -> None:
        self._admission = admission
        self._size = size

    def __enter__(self) -> Ticket:
        """Return self."""
        return self

    def __exit__(self, *error: object) -> None:
        """Release the places. Mutates: the admission's count"""
        self.close()

    def close(self) -> None:
        """Release the places. Mutates: the admission's count"""
        self._admission.num_inside -= self._size
        self._size = 0


class Admission:
    """Counts admitted sequences. `max_running`: the engine's rows. `max_queued` limits those that
    wait, `max_tokens` their prompt tokens (None: no limit)."""

    def __init__(
        self,
        engine: EngineLoad,
        *,
        max_running: int,
        max_queued: int | None,
        max_tokens: int | None = None,
    ) -> None:
        self._max_tokens = max_tokens
        self.num_inside = 0
        self.num_refused = 0
        self.is_draining = False
        self._engine = engine
        self._max_running = max_running
        self._max_queued = max_queued

    def admit(self, size: int) -> Ticket:
        """Return a ticket for `size` sequences. Raises: EngineDead, Overloaded"""
        if not self._engine.is_alive:
            cause = self._engine.death_reason or "unknown cause"
            raise EngineDead(f"the engine is gone: {cause}")
        reason = self._reason_against(size)
        if reason is not None:
            self.num_refused += 1
            raise Overloaded(reason, retry_after_s=RETRY_AFTER_S)
        self.num_inside += size
        return Ticket(self, size)

    def _reason_against(self, size: int) -> str | None:
        if self.is_draining:
            return "the server is shutting down."
        if self._max_tokens is not None and self._engine.pending_tokens() >= self._max_tokens:
            return f"{self._max_tokens} prompt tokens wait already; try again shortly."
        if self._max_queued is None or self.num_inside == 0:
            return None
        _, waiting = self._engine.load()
        is_full = self.num_inside + size > self._max_running + self._max_queued
        if is_full or waiting + size > self._max_queued:
            return "the queue is full; try again shortly."
        return None

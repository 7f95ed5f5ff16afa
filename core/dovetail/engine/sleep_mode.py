"""SleepMode: whether an engine is awake, and the two ways between awake and asleep.

Weights and KV cache fall asleep together and may be woken one by one; requests are taken while both
are awake. An engine that is to sleep takes no new ones, and sleeps when the last has ended. Knows
no message and no client.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from dovetail.errors import ConfigError, EngineAsleep, RequestError
from dovetail.interfaces.executor import Executor

logger = logging.getLogger(__name__)

WEIGHTS, KV_CACHE = "weights", "kv_cache"
TAGS = (WEIGHTS, KV_CACHE)
LEVELS = (1, 2)
WAKE_FIX = "wake it up: POST /wake_up, or LLM.wake_up()."


class SleepMode:
    """The sleep of one engine. `level` is 0 while it is awake, `asleep` says what is not there."""

    def __init__(
        self, executor: Executor, forget_prefixes: Callable[[], None], *, can_sleep: bool
    ) -> None:
        self.level = 0
        self.asleep: tuple[str, ...] = ()
        self._executor = executor
        self._forget_prefixes = forget_prefixes
        self._can_sleep = can_sleep
        self._pending_sleeps: list[tuple[int, Future[None]]] = []

    def refusal(self) -> EngineAsleep | None:
        """Return why no request is taken now, or None."""
        if not self._pending_sleeps and not self.asleep:
            return None
        return asleep_error("is asleep" if self.asleep else "is about to sleep")

    @property
    def is_pending(self) -> bool:
        """Return whether the engine is to sleep once nothing runs."""
        return bool(self._pending_sleeps)

    def begin_sleep(self, level: int) -> Future[None]:
        """Take no more requests, and sleep when `fall_asleep` is called; the result tells when.

        Raises: RequestError for a sleep that cannot be. Mutates: self
        """
        self._verify_level(level)
        done: Future[None] = Future()
        self._pending_sleeps.append((level, done))
        return done

    def fall_asleep(self) -> None:
        """Sleep as the first wants it who waits for that; nothing may run. Mutates: as `sleep`"""
        for level, done in self._take_pending():
            try:
                self.sleep(level)
            except (RequestError, ConfigError) as error:
                done.set_exception(error)
            else:
                done.set_result(None)

    def sleep(self, level: int) -> None:
        """Release the memory; nothing may run. Does nothing when it is released already.

        Raises: RequestError; then the engine is awake. Mutates: self, the prefix index
        """
        self._verify_level(level)
        if not self.asleep:
            self._executor.sleep(level)
            self._forget_prefixes()
            self.level, self.asleep = level, TAGS
            logger.info("the engine sleeps at level %d", level)

    def wake_up(self, tags: Sequence[str] = ()) -> None:
        """Take the memory of `tags` again (none: of all). What is awake stays so, and a sleep that
        has not come yet does not come.

        Raises: RequestError for an unknown tag, and for memory that cannot be had: it still sleeps.
        Mutates: self
        """
        self._verify_allowed()
        for tag in tags:
            if tag not in TAGS:
                raise RequestError(
                    f'there is no "{tag}" to wake up.', where="tags", fix=f"use {', '.join(TAGS)}."
                )
        for _, done in self._take_pending():
            done.set_exception(RequestError("the engine was woken up before it slept.", status=409))
        for tag in (tag for tag in self.asleep if not tags or tag in tags):
            self._wake_up(tag)
        if not self.asleep:
            self.level = 0

    def _wake_up(self, tag: str) -> None:
        try:
            self._executor.wake_up((tag,))
        except ConfigError as error:  # a checkpoint that has gone; waking up may be tried again
            raise RequestError(error.what, where=error.where, fix=error.fix, status=503) from error
        self.asleep = tuple(other for other in self.asleep if other != tag)
        logger.info("%s woke up", tag)

    def _take_pending(self) -> list[tuple[int, Future[None]]]:
        pending, self._pending_sleeps = self._pending_sleeps, []
        return pending

    def _verify_level(self, level: int) -> None:
        """Raise RequestError when the engine cannot go to sleep at this level now."""
        self._verify_allowed()
        if level not in LEVELS:
            raise RequestError(
                f"sleep level {level} does not exist.", where="level", fix="use 1 or 2."
            )
        if self.asleep and (level, self.asleep) != (self.level, TAGS):
            raise RequestError(
                f"the engine sleeps at level {self.level} with {' and '.join(self.asleep)}.",
                where="level",
                fix="wake it up first.",
                status=409,
            )

    def _verify_allowed(self) -> None:
        if not self._can_sleep:
            raise RequestError(
                "sleep mode is off.", fix="start the server with --enable-sleep-mode."
            )


def asleep_error(what: str = "is asleep") -> EngineAsleep:
    """Return the error for requests to a sleeping engine."""
    return EngineAsleep(f"the engine {what}.", fix=WAKE_FIX, code=EngineAsleep.kind)

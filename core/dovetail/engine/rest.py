"""Rest: whether an engine is awake, and the two ways between awake and asleep.

Weights and KV cache fall asleep together and may be woken one by one; requests are taken while both
are awake. An engine that is to sleep takes no new ones, and sleeps when the last has ended. Knows
no message and no client.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from dovetail.errors import EngineAsleep, RequestError
from dovetail.interfaces.executor import Executor

logger = logging.getLogger(__name__)

WEIGHTS, KV_CACHE = "weights", "kv_cache"
TAGS = (WEIGHTS, KV_CACHE)
LEVELS = (1, 2)
WAKE_FIX = "wake it up: POST /wake_up, or LLM.wake_up()."


class Rest:
    """The rest of one engine. `level` is 0 while it is awake, `asleep` says what is not there."""

    def __init__(
        self, executor: Executor, forget_prefixes: Callable[[], None], *, can_sleep: bool
    ) -> None:
        self.level = 0
        self.asleep: tuple[str, ...] = ()
        self._executor = executor
        self._forget_prefixes = forget_prefixes
        self._can_sleep = can_sleep
        self._is_dozing = False

    def refusal(self) -> EngineAsleep | None:
        """Return why no request is taken now, or None."""
        if not self._is_dozing and not self.asleep:
            return None
        return asleep_error("is asleep" if self.asleep else "is about to sleep")

    def doze(self, level: int) -> None:
        """Take no more requests. Raises: RequestError for a sleep that cannot be. Mutates: self"""
        self._check_allowed()
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
        self._is_dozing = True

    def stay_awake(self) -> None:
        """Take requests again after a doze. Mutates: self"""
        self._is_dozing = False

    def sleep(self, level: int) -> None:
        """Give the memory back; nothing may run. Does nothing when it is given back already.

        Raises: RequestError; then the engine is awake. Mutates: self, the prefix index
        """
        self.doze(level)
        try:
            if not self.asleep:
                self._executor.sleep(level)
                self._forget_prefixes()
                self.level, self.asleep = level, TAGS
                logger.info("the engine sleeps at level %d", level)
        finally:
            self._is_dozing = False

    def wake_up(self, tags: Sequence[str] = ()) -> None:
        """Take the memory of `tags` again (none: of all). What is awake stays so.

        Raises: RequestError for an unknown tag; what the executor raised, then what could not be
        had still sleeps. Mutates: self
        """
        self._check_allowed()
        for tag in tags:
            if tag not in TAGS:
                raise RequestError(
                    f'there is no "{tag}" to wake up.', where="tags", fix=f"use {', '.join(TAGS)}."
                )
        self._is_dozing = False
        for tag in (tag for tag in self.asleep if not tags or tag in tags):
            self._executor.wake_up((tag,))
            self.asleep = tuple(other for other in self.asleep if other != tag)
            logger.info("%s woke up", tag)
        if not self.asleep:
            self.level = 0

    def _check_allowed(self) -> None:
        if not self._can_sleep:
            raise RequestError(
                "sleep mode is off.", fix="start the server with --enable-sleep-mode."
            )


def asleep_error(what: str = "is asleep") -> EngineAsleep:
    """Return what a request is refused with."""
    return EngineAsleep(f"the engine {what}.", fix=WAKE_FIX, code=EngineAsleep.kind)

"""SleepMode: whether an engine is awake, and the transitions to sleep and back.

Weights and KV cache go to sleep together and may be woken one by one; requests are accepted while
both are awake. An engine that is about to sleep accepts no new requests, and sleeps once the last
has ended.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from dovetail.engine.active_request import ActiveRequest
from dovetail.engine.messages import AnyOperation, Sleep, WakeUp
from dovetail.engine.parts.part import Engine, EnginePart
from dovetail.errors import ConfigError, EngineAsleep, RequestError
from dovetail.interfaces.executor import Executor

logger = logging.getLogger(__name__)

WEIGHTS, KV_CACHE = "weights", "kv_cache"
TAGS = (WEIGHTS, KV_CACHE)
LEVELS = (1, 2)
WAKE_FIX = "wake it up: POST /wake_up, or LLM.wake_up()."


class SleepMode(EnginePart):
    """The sleep state of one engine. `level` is 0 if awake; `asleep` lists the sleeping parts."""

    def __init__(self, executor: Executor, engine: Engine, *, can_sleep: bool) -> None:
        self.level = 0
        self.asleep: tuple[str, ...] = ()
        self._executor = executor
        self._engine = engine
        self._can_sleep = can_sleep
        self._pending_sleeps: list[tuple[int, Future[None]]] = []

    def receive(self, active: ActiveRequest) -> None:
        """Raise EngineAsleep unless the engine is awake and stays so."""
        if self._pending_sleeps or self.asleep:
            raise asleep_error("is asleep" if self.asleep else "is about to sleep")

    def report(self, stats: dict[str, Any]) -> None:
        """Add the level. Mutates: stats"""
        stats["sleep_level"] = self.level

    def perform(self, operation: AnyOperation) -> Any:
        """Wake up; or stop accepting requests, and sleep once none is left: then the future is
        done. Raises: RequestError. Mutates: self"""
        if isinstance(operation, WakeUp):
            return self.wake_up(operation.tags)
        if not isinstance(operation, Sleep):
            return NotImplemented
        self._verify_level(operation.level)
        done: Future[None] = Future()
        self._pending_sleeps.append((operation.level, done))
        if not operation.waits:
            self._engine.abort_all()
        return done

    def describe(self, condition: dict[str, Any], repeats: list[AnyOperation]) -> None:
        """Add the parts that sleep. Mutates: condition, repeats"""
        condition["asleep"] = self.asleep
        if self.asleep:
            repeats.append(Sleep(level=1))

    def poll(self) -> None:
        """Sleep at the level of the first pending call, once no request is left."""
        if not self._pending_sleeps or not self._engine.is_empty:
            return
        for level, done in self._take_pending():
            try:
                self.sleep(level)
            except (RequestError, ConfigError) as error:
                done.set_exception(error)
            else:
                done.set_result(None)

    def sleep(self, level: int) -> None:
        """Release the memory; no request may run. Does nothing if it is released already.

        Raises: RequestError; the engine then stays awake. Mutates: self, the prefix index
        """
        self._verify_level(level)
        if not self.asleep:
            self._executor.sleep(level)
            self._engine.forget_memory()
            self.level, self.asleep = level, TAGS
            logger.info("the engine sleeps at level %d", level)

    def wake_up(self, tags: Sequence[str] = ()) -> None:
        """Reallocate the memory of `tags` (none: of all). What is awake stays awake; a pending
        sleep is cancelled.

        Raises: RequestError for an unknown tag, or if the memory is not available: the engine stays
        asleep. Mutates: self
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
        except ConfigError as error:  # a missing checkpoint, for example; waking up may be retried
            raise RequestError(error.what, where=error.where, fix=error.fix, status=503) from error
        self.asleep = tuple(other for other in self.asleep if other != tag)
        logger.info("%s woke up", tag)

    def _take_pending(self) -> list[tuple[int, Future[None]]]:
        pending, self._pending_sleeps = self._pending_sleeps, []
        return pending

    def _verify_level(self, level: int) -> None:
        """Raise RequestError if the engine cannot go to sleep at this level now."""
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

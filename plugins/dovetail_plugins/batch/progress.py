"""Progress of a batch: a bar on a terminal, otherwise a log line from time to time."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from contextlib import ExitStack
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

import msgspec
from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from dovetail.json_values import InvalidJson, json_struct
from dovetail.observability.supervise import supervised
from dovetail_plugins.apis.batches.answer import ResultLine
from dovetail_plugins.apis.batches.lines import Scan

logger = logging.getLogger("dovetail_plugins.batch")
PERIOD_S = 10.0


class _Usage(msgspec.Struct, frozen=True):
    """The token counts of an answer, under OpenAI's older names or those of newer routes."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    input_tokens: int = 0
    cache_read_input_tokens: int = 0
    output_tokens: int = 0


class _Counted(msgspec.Struct, frozen=True):
    usage: _Usage | None = None


class Progress:
    """Counts lines and tokens, and shows them inside a with block. `is_bar`: as a bar."""

    def __init__(self, found: Scan, *, is_bar: bool) -> None:
        self.num_done = found.num_answered
        self.num_failed = found.num_failed
        self.num_prompt_tokens = 0
        self.num_tokens = 0
        self._found = found
        self._is_bar = is_bar
        self._bar: tqdm[Any] | None = None
        self._ticker: asyncio.Task[None] | None = None
        self._shown = ExitStack()
        self._began_s = time.monotonic()

    def note(self, result: ResultLine) -> None:
        """Count a result. Mutates: self"""
        self.num_done += 1
        self.num_failed += result.is_failed
        if result.response is not None:
            self._count(bytes(result.response.body))
        if self._bar is not None:
            self._bar.set_postfix_str(
                f"{self.num_failed} failed, {self.tokens_per_s():.0f} tokens/s", refresh=False
            )
            self._bar.update()

    def _count(self, body: bytes) -> None:
        try:
            usage = json_struct(body, _Counted).usage
        except InvalidJson:
            return  # the route counts no tokens
        if usage is not None:
            read = usage.input_tokens + usage.cache_read_input_tokens
            self.num_prompt_tokens += usage.prompt_tokens + read
            self.num_tokens += usage.completion_tokens + usage.output_tokens

    def seconds(self) -> float:
        """Return the time since answering began."""
        return time.monotonic() - self._began_s

    def tokens_per_s(self) -> float:
        """Return the generated tokens per second of this run."""
        return self.num_tokens / max(self.seconds(), 1e-9)

    def line(self) -> str:
        """Return the progress in one line."""
        return (
            f"{self.num_done} of {self._found.num_lines} done, {self.num_failed} failed, "
            f"{self.tokens_per_s():.0f} tokens/s, {self._left()} left"
        )

    def _left(self) -> str:
        num_here = self.num_done - self._found.num_answered
        if not num_here:
            return "unknown time"
        left_s = self.seconds() / num_here * (self._found.num_lines - self.num_done)
        return str(timedelta(seconds=round(left_s)))

    def __enter__(self) -> Self:
        self._began_s = time.monotonic()
        if self._is_bar:
            self._shown.enter_context(logging_redirect_tqdm([logging.getLogger("dovetail")]))
            bar = tqdm(total=self._found.num_lines, initial=self.num_done, unit="line")  # type: ignore[var-annotated]
            self._bar = self._shown.enter_context(bar)
        else:
            self._ticker = supervised("progress", self._tick)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._ticker is not None:
            self._ticker.cancel()
        self._shown.close()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(PERIOD_S)
            logger.info("%s", self.line())


def is_terminal() -> bool:
    """Return whether a bar can be drawn."""
    return sys.stderr.isatty()

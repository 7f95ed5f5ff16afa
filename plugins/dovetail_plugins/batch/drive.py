"""drive: sends every line without a result, with limited concurrency, and writes each result.

Results are in the order in which answers end.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from dovetail.errors import EngineDead
from dovetail_plugins.apis.batches.answer import ResultLine, answer
from dovetail_plugins.apis.batches.call import Caller
from dovetail_plugins.apis.batches.lines import Line, custom_id_of, name_of_line
from dovetail_plugins.batch.progress import Progress
from dovetail_plugins.batch.results import ResultFile

logger = logging.getLogger("dovetail_plugins.batch")
BREATH_LINES = 256
"""The event loop gets a turn after this many lines, even if they are only skipped."""

DEAD_STATUS = 503


async def drive(
    lines: Iterable[Line],
    caller: Caller,
    results: ResultFile,
    progress: Progress,
    *,
    max_open: int,
    death_of: Callable[[], str | None],
) -> None:
    """Answer the lines, at most `max_open` concurrently. `death_of` returns why the engine died.

    Mutates: results, progress. Raises: EngineDead (open lines are left without a result),
    DovetailError if a result cannot be written.
    """
    gate = asyncio.Semaphore(max_open)

    async def one(line: Line, name: str, custom_id: str | None) -> None:
        try:
            result = await answer(line, name, custom_id, caller)
            _check_alive(result, death_of())
            results.add(result)
            progress.note(result)
        finally:
            gate.release()

    try:
        async with asyncio.TaskGroup() as group:
            for count, line in enumerate(lines):
                if count % BREATH_LINES == 0:
                    await asyncio.sleep(0)
                custom_id = custom_id_of(line)
                name = name_of_line(line, custom_id)
                if name not in results.answered:
                    await gate.acquire()
                    group.create_task(one(line, name, custom_id))
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None


def _check_alive(result: ResultLine, death: str | None) -> None:
    """Raise EngineDead for an answer that only reports its death: the line remains unanswered."""
    is_refusal = result.response is not None and result.response.status_code == DEAD_STATUS
    if is_refusal and death is not None:
        fix = "give the same command again: it resumes from here."
        raise EngineDead(f"the engine is gone: {death}", fix=fix)

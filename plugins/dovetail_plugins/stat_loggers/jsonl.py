"""One line of JSON for every request that the engine took, when it has ended, however it ended.

No line holds text of a prompt or an answer. Knows no log: the lines go to a file, or unchanged to
standard error.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from dovetail.errors import ConfigError
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.stats import Caller, RequestStats, StatLogger, StepStats

OPTION = "--plugin-options.stat_logger.jsonl.path"
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}.*")


@dataclass(frozen=True, kw_only=True)
class _Options:
    path: str = field(
        default="", metadata={"help": "file that grows line by line; empty: standard error"}
    )


class RequestLines(StatLogger):
    """The file is opened for every line, so it may be moved away at any time."""

    info = Info(
        summary="one JSON line per finished request: ids, counts, times and the finish reason"
    )
    Options = _Options

    def __init__(self, options: Any, model_name: str, max_model_tokens: int) -> None:
        self._model = model_name
        self._path = Path(options.path).expanduser() if options.path else None
        try:
            self._write(b"")
        except OSError as error:
            raise ConfigError(
                f"cannot write {self._path}: {error.strerror}.",
                where=OPTION,
                fix="name a file in a folder that this user may write to.",
            ) from error

    def step(self, stats: StepStats) -> None:
        """Ignore steps: lines are per request."""

    def request(self, stats: RequestStats) -> None:
        """Write the line. Raises: OSError when it cannot be written"""
        self._write(msgspec.json.encode(line_of(stats, self._model)) + b"\n")

    def _write(self, line: bytes) -> None:
        if self._path is None:
            sys.stderr.write(line.decode())
            return
        # One write of one line: several processes may append to one file.
        with self._path.open("ab", buffering=0) as file:
            file.write(line)


def line_of(stats: RequestStats, model: str) -> dict[str, Any]:
    """Return the line's content. Times in seconds, null if the request never got there."""
    has_tokens = stats.generated_tokens > 0
    return {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "request_id": stats.request_id,
        "trace_id": _trace_id(stats.caller),
        "path": stats.caller.path if stats.caller is not None else None,
        "model": model,
        "engine": stats.engine,
        "finish_reasons": stats.finish_reasons or (stats.finish_reason,),
        "error": stats.error or None,
        "n": stats.n,
        "max_tokens": stats.max_tokens,
        "prompt_tokens": stats.prompt_tokens,
        "cached_tokens": stats.cached_tokens,
        "generated_tokens": stats.generated_tokens,
        "queue_s": round(stats.queue_s, 6),
        "ttft_s": round(stats.ttft_s, 6) if has_tokens else None,
        "prefill_s": round(stats.prefill_s, 6) if has_tokens else None,
        "decode_s": round(stats.decode_s, 6) if has_tokens else None,
        "e2e_s": round(stats.e2e_s, 6),
    }


def _trace_id(caller: Caller | None) -> str | None:
    found = _TRACEPARENT.fullmatch(caller.traceparent) if caller is not None else None
    return found[1] if found else None

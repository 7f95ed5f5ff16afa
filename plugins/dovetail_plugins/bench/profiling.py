"""--profile of benchmarks: only the measured part runs under the profiler, on all ranks."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from dovetail.errors import ConfigError, DovetailError
from dovetail.json_values import json_value
from dovetail_plugins.bench.dialect import models_path

FLAG = "--profile"


@contextmanager
def profiled(llm: Any, *, is_asked: bool) -> Iterator[None]:
    """Profile the engine in this process during the block, if requested, and print the paths of the
    traces. Raises: ConfigError if the engine has no folder for them"""
    if not is_asked:
        yield
        return
    if llm.spec.run.profile is None:
        raise ConfigError(
            "there is no folder for the traces.",
            where=FLAG,
            fix="name one with --profiler-config FOLDER.",
        )
    llm.start_profile()
    try:
        yield
    finally:
        _print_paths(llm.stop_profile())


@asynccontextmanager
async def server_profiled(target: Any, *, is_asked: bool) -> AsyncIterator[None]:
    """Profile a server during the block, if requested, and print the paths of the traces.

    Raises: DovetailError with the server's message if it refuses
    """
    if not is_asked:
        yield
        return
    await _post(target, "/start_profile")
    try:
        yield
    finally:
        answer = await _post(target, "/stop_profile")
        _print_paths(answer.get("traces", ()))


async def _post(target: Any, path: str) -> dict[str, Any]:
    """Return a server's answer to a call without a body; {} if it is empty."""
    from dovetail_plugins.bench.client import send

    base = models_path(target.path).removesuffix("/models").removesuffix("/v1")
    trace = await send(target, target.request("POST", base + path))
    if trace.error is not None or trace.status != 200:
        reason = trace.error or f"status {trace.status}: {trace.body.decode(errors='replace')}"
        raise DovetailError(
            f"{path} was not done: {reason}",
            where=FLAG,
            fix="start the server with --profiler-config FOLDER.",
        )
    try:
        found = json_value(trace.body)
    except ValueError:  # another server, with an empty answer
        return {}
    return found if isinstance(found, dict) else {}


def _print_paths(traces: Sequence[str]) -> None:
    """Print the paths of the traces to standard error."""
    for path in traces:
        print(f"trace: {path}", file=sys.stderr)

"""Sends requests at their due times, with limited concurrency."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import time
from collections.abc import Callable, Sequence

from dovetail_plugins.bench.client import RequestTarget, Trace, send


async def run_load(
    target: RequestTarget,
    requests: Sequence[bytes],
    due_s: Sequence[float],
    *,
    max_concurrency: int | None = None,
    when_done: Callable[[], object] = lambda: None,
) -> list[Trace]:
    """Return one trace per request, in order. `due_s` counts from now.

    A request above `max_concurrency` waits here. That wait is not part of its time, as no server
    has seen it.
    """
    gate = asyncio.Semaphore(max_concurrency) if max_concurrency else contextlib.nullcontext()
    began_s = time.perf_counter()

    async def one(request: bytes, at_s: float) -> Trace:
        wait_s = began_s + at_s - time.perf_counter()
        if wait_s > 0:
            await asyncio.sleep(wait_s)
        async with gate:
            trace = await send(target, request)
        when_done()
        return trace

    return await asyncio.gather(*map(one, requests, due_s))


def allow_connections(count: int) -> None:
    """Raise the open-file limit for `count` connections, as far as allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + 256
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))

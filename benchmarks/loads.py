"""A small streaming client: fixed concurrency against any OpenAI completions endpoint.

Standard library only, one connection a request, so that the client costs little beside the server
on the same cores. Times are seconds of time.perf_counter.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from urllib.parse import urlsplit


@dataclass
class Timing:
    """One request: when it was sent, when text arrived, how many tokens the server counted."""

    start_s: float
    events_s: list[float] = field(default_factory=list)
    tokens: int = 0
    error: str | None = None


async def complete(url: str, body: dict[str, object]) -> Timing:
    """Send one streaming completion and time its events. `url` is http: or unix: and a path."""
    parts = urlsplit(url)
    if parts.scheme == "unix":
        reader, writer = await asyncio.open_unix_connection(parts.path)
    else:
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    payload = json.dumps(body | {"stream": True, "stream_options": {"include_usage": True}})
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: {parts.netloc}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(payload)}\r\n"
        "Connection: close\r\n\r\n"
    )
    timing = Timing(time.perf_counter())
    writer.write(head.encode() + payload.encode())
    await writer.drain()
    status = await reader.readline()
    if b" 200 " not in status:
        timing.error = (status + await reader.read()).decode(errors="replace")[:300]
    while line := await reader.readline():
        _read_event(line, timing)
    writer.close()
    return timing


def _read_event(line: bytes, timing: Timing) -> None:
    if not line.startswith(b"data: {"):
        return
    event = json.loads(line[6:])
    if "error" in event:
        timing.error = str(event["error"])
    if event.get("choices"):
        timing.events_s.append(time.perf_counter())
    if event.get("usage"):
        timing.tokens = event["usage"]["completion_tokens"]


async def run_level(
    url: str, bodies: list[dict[str, object]], concurrency: int
) -> tuple[float, list[Timing]]:
    """Run all bodies, `concurrency` at a time; return (wall seconds, timings)."""
    gate = asyncio.Semaphore(concurrency)

    async def one(body: dict[str, object]) -> Timing:
        async with gate:
            return await complete(url, body)

    start_s = time.perf_counter()
    timings = await asyncio.gather(*(one(body) for body in bodies))
    return time.perf_counter() - start_s, list(timings)


def percentile(values: list[float], share: float) -> float:
    """Return the nearest-rank percentile; nan when there is nothing to rank."""
    if not values:
        return float("nan")
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def summarize(wall_s: float, timings: list[Timing]) -> dict[str, float]:
    """Return throughput in tokens/s and latencies in milliseconds."""
    good = [t for t in timings if t.error is None and t.events_s]
    gaps = [b - a for t in good for a, b in zip(t.events_s, t.events_s[1:], strict=False)]
    firsts = [t.events_s[0] - t.start_s for t in good]
    return {
        "requests": len(timings),
        "failed": len(timings) - len(good),
        "tokens_per_s": sum(t.tokens for t in good) / wall_s,
        "ttft_p50_ms": 1e3 * percentile(firsts, 0.5),
        "ttft_p99_ms": 1e3 * percentile(firsts, 0.99),
        "itl_p50_ms": 1e3 * percentile(gaps, 0.5),
        "itl_p99_ms": 1e3 * percentile(gaps, 0.99),
    }

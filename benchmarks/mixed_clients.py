"""Clients of all dialects at once: streams and whole answers, and some that leave in the middle.

`run` keeps a number of clients busy and tells what became of every request. Standard library only.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from urllib.parse import urlsplit

SHARE_STREAMED = 0.6
SHARE_LEAVING = 0.1
LIMIT_S = 120.0
Body = dict[str, object]


@dataclass(frozen=True, slots=True)
class Dialect:
    """A path, what is sent there, and what complete answers hold: whole ones and streams."""

    path: str
    body: Callable[[str, int], Body]
    whole: str
    ends: tuple[bytes, ...]


def _chat(text: str, tokens: int) -> Body:
    return {"messages": [{"role": "user", "content": text}], "max_tokens": tokens}


def _ollama(text: str, tokens: int) -> Body:
    messages = [{"role": "user", "content": text}]
    return {"messages": messages, "options": {"num_predict": tokens}}


DIALECTS = {
    "completions": Dialect(
        "/v1/completions",
        lambda text, tokens: {"prompt": text, "max_tokens": tokens, "ignore_eos": True},
        "choices",
        (b"data: [DONE]",),
    ),
    "chat": Dialect("/v1/chat/completions", _chat, "choices", (b"data: [DONE]",)),
    "responses": Dialect(
        "/v1/responses",
        lambda text, tokens: {"input": text, "max_output_tokens": tokens, "store": False},
        "output",
        (b'"type":"response.completed"', b'"type":"response.incomplete"'),
    ),
    "messages": Dialect("/v1/messages", _chat, "content", (b'"type":"message_stop"',)),
    "ollama": Dialect("/api/chat", _ollama, "message", (b'"done":true',)),
}


@dataclass
class Outcome:
    """What became of all requests: how many of each sort, what failed, seconds to the first byte
    of an answer."""

    counts: Counter[str] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)
    first_s: list[float] = field(default_factory=list)


async def run(
    url: str, num_clients: int, seconds: float, choose: Callable[[float, Random], str]
) -> Outcome:
    """Return the outcome of that many clients; `choose` names a request's model, given the seconds
    since the start."""
    start_s = time.monotonic()
    outcome = Outcome()

    async def client(number: int) -> None:
        random = Random(number)
        while (now_s := time.monotonic() - start_s) < seconds:
            await _ask(url, choose(now_s, random), random, outcome)

    await asyncio.gather(*map(client, range(num_clients)))
    return outcome


async def _ask(url: str, model: str, random: Random, outcome: Outcome) -> None:
    """Send one request of a random sort. Mutates: outcome"""
    name = random.choice(list(DIALECTS))
    dialect = DIALECTS[name]
    is_stream, leaves = random.random() < SHARE_STREAMED, random.random() < SHARE_LEAVING
    text = " ".join(str(random.randrange(1000)) for _ in range(12))
    body = dialect.body(text, 400 if leaves else 32) | {"model": model, "stream": is_stream}
    sort = f"{name}, {'stream' if is_stream else 'whole'}{', left' if leaves else ''}"
    try:
        async with asyncio.timeout(LIMIT_S):
            fault = await _exchange(url, dialect, body, leaves, outcome)
    except (OSError, asyncio.IncompleteReadError) as error:
        fault = repr(error)
    outcome.counts[sort] += 1
    if fault is not None:
        outcome.failed.append(f"{sort}, {model}: {fault}")


async def _exchange(
    url: str, dialect: Dialect, body: Body, leaves: bool, outcome: Outcome
) -> str | None:
    """Return what is wrong with the answer, None if nothing is. Mutates: outcome"""
    parts = urlsplit(url)
    payload = json.dumps(body).encode()
    head = (
        f"POST {dialect.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(payload)}\r\n\r\n"
    )
    start_s = time.perf_counter()
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    try:
        writer.write(head.encode() + payload)
        if leaves and not body["stream"]:
            await asyncio.sleep(0.03)
            return None
        status = await reader.readline()
        outcome.first_s.append(time.perf_counter() - start_s)
        if b" 200 " not in status:
            return (status + await reader.read()).decode(errors="replace")[-300:]
        await reader.readuntil(b"\r\n\r\n")
        if leaves:
            await reader.readline()
            return None
        return _fault_of(await reader.read(), dialect, bool(body["stream"]))
    finally:
        writer.close()


def _fault_of(answer: bytes, dialect: Dialect, is_stream: bool) -> str | None:
    if not is_stream:
        is_whole = dialect.whole in json.loads(answer)
        return None if is_whole else f"no {dialect.whole}: {answer[:200]!r}"
    text = answer.replace(b'": ', b'":')
    ends_well = text.endswith(b"0\r\n\r\n") and b'"error":{' not in text
    is_complete = any(end in text for end in dialect.ends) and ends_well
    return None if is_complete else f"it ends with {answer[-300:]!r}"

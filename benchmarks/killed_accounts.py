"""Accounts of a server that is killed again and again, by what its clients saw.

A server with two API processes answers short requests of 50 keys, some streamed. --kills times, at
random moments, an API process or the whole server gets SIGKILL, and is started again with the same
folder of accounts. A request is *whole* if its client got the answer to the end, with `usage`, and
*cut* if the connection ended before. At the end `dovetail usage` must be, for each key,

    the sum of `usage` of whole requests, plus at most one entry for each cut request:

numbers of requests and tokens of prompts are the sum over some subset of the cut requests, each of
them once; tokens of their answers are at most max_tokens each, cached ones at most their prompts.
So nothing that a client was told is lost, and nothing is counted twice.

    PYTHONPATH=core:plugins:kernels python -m benchmarks.killed_accounts --requests 100000
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.faults import API, Family
from benchmarks.foundation import ENV, free_port, is_ready
from dovetail_plugins.gates._keys_file import hash_of

FIELDS = ("requests", "prompt_tokens", "cached_tokens", "generated_tokens")
MAX_TOKENS = 2
VOCABULARY = 2000
FLAGS = ("--api-server-count", "2", "--cpu-cores", "nobind", "--stat-loggers", "accounts")
START_LIMIT_S = 300.0
Counts = list[int]


@dataclass
class Seen:
    """What clients saw: by key the sums of whole requests, and the prompts of cut ones."""

    whole: defaultdict[str, Counts] = field(default_factory=lambda: defaultdict(lambda: [0] * 4))
    cut: defaultdict[str, Counts] = field(default_factory=lambda: defaultdict(list))
    num_whole: int = 0
    num_sent: int = 0

    @property
    def num_cut(self) -> int:
        """Return the number of cut requests."""
        return sum(map(len, self.cut.values()))


class Clients:
    """Connections that send requests one after another, until `limit` were sent in all or the
    server has gone."""

    def __init__(self, seen: Seen, limit: int, num_keys: int, seed: int) -> None:
        self._seen, self._limit, self._num_keys = seen, limit, num_keys
        self._random = Random(seed)

    async def run(self, port: int, count: int) -> None:
        """Send until the end, over `count` connections. Mutates: what was seen"""
        await asyncio.gather(*(self._connection(port) for _ in range(count)))

    async def _connection(self, port: int) -> None:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            return  # the server has gone
        try:
            await self._send(reader, writer)
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _send(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while self._seen.num_sent < self._limit:
            key = f"key-{self._random.randrange(self._num_keys)}"
            family, size = self._random.randrange(8), self._random.randrange(1, 60)
            prompt = [(family * 97 + place) % VOCABULARY for place in range(size)]
            self._seen.num_sent += 1
            try:
                writer.write(_request(key, prompt, streams=self._seen.num_sent % 5 == 0))
                usage = await _usage(reader)
            except (OSError, EOFError):
                self._seen.cut[key].append(len(prompt))
                return
            cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
            numbers = (1, usage["prompt_tokens"], cached, usage["completion_tokens"])
            row = self._seen.whole[key]
            row[:] = [sum(pair) for pair in zip(row, numbers, strict=True)]
            self._seen.num_whole += 1


def _request(key: str, prompt: list[int], *, streams: bool) -> bytes:
    body: dict[str, Any] = {"prompt": prompt, "max_tokens": MAX_TOKENS, "ignore_eos": True}
    if streams:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    data = json.dumps(body).encode()
    head = f"Host: x\r\nAuthorization: Bearer sk-{key}\r\nContent-Type: application/json\r\n"
    return (
        f"POST /v1/completions HTTP/1.1\r\n{head}Content-Length: {len(data)}\r\n\r\n".encode()
        + data
    )


async def _usage(reader: asyncio.StreamReader) -> dict[str, Any]:
    """Return the usage of an answer once it is whole. Raises: OSError, EOFError"""
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    if not head.startswith("http/1.1 200"):
        raise SystemExit(f"not answered: {head}{await reader.read(1000)!r}")
    if "content-length: " in head:
        size = int(head.split("content-length: ")[1].split("\r\n")[0])
        return dict(json.loads(await reader.readexactly(size))["usage"])
    text = b""
    while size := int(await reader.readuntil(b"\r\n"), 16):
        text += (await reader.readexactly(size + 2))[:-2]
    await reader.readexactly(2)
    events = [line[6:] for line in text.decode().splitlines() if line.startswith("data: ")]
    if events[-1] != "[DONE]":
        raise SystemExit(f"a stream ended without [DONE]: {events[-1]}")
    return dict(json.loads(events[-2])["usage"])


class Server:
    """A server that can be killed and started again."""

    def __init__(self, folder: Path, num_keys: int) -> None:
        self._folder = folder
        rows = [{"name": f"key-{n}", "hash": hash_of(f"sk-key-{n}")} for n in range(num_keys)]
        (folder / "keys.jsonl").write_text("\n".join(map(json.dumps, rows)))
        self.port, self._family = free_port(), None
        self.num_started = 0

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self.num_started += 1
        options = {"stat_logger": {"accounts": {"folder": str(self._folder / "accounts")}}}
        words = ["--port", str(self.port), *FLAGS, "--plugin-options", json.dumps(options)]
        words += ["--api-keys-file", str(self._folder / "keys.jsonl")]
        log = self._folder / f"server-{self.num_started}.log"
        self._family = Family(words, ENV, log)
        deadline_s = time.monotonic() + START_LIMIT_S
        while not is_ready(f"http://127.0.0.1:{self.port}"):
            if self._family.process.poll() is not None or time.monotonic() > deadline_s:
                raise SystemExit(f"the server did not start:\n{log.read_text()[-3000:]}")
            time.sleep(0.05)

    def kill(self, what: str) -> None:
        """Kill an API process, or all of the server; then wait until all of it has gone."""
        family = self._family
        assert family is not None, "it was started"
        members = family.members()
        if what == "an API process":
            family.of(API)[-1].kill()
        else:
            family.root.kill()
            for one in members:
                one.kill()
        deadline_s = time.monotonic() + 30
        while (family.process.poll() is None or family.members()) and time.monotonic() < deadline_s:
            time.sleep(0.05)
        family.close()

    def stop(self) -> None:
        """Stop it as an operator does."""
        assert self._family is not None, "it was started"
        self._family.process.terminate()
        self._family.process.wait(60)
        self._family.close()

    def accounts(self) -> dict[str, Counts]:
        """Return what `dovetail usage` says by key."""
        command = [sys.executable, "-m", "dovetail", "usage", "--by", "owner", "--json"]
        folder = ["--folder", str(self._folder / "accounts")]
        answer = subprocess.run([*command, *folder], env=ENV, check=True, capture_output=True)
        rows = json.loads(answer.stdout)
        return {row["owner"]: [row[name] for name in FIELDS] for row in rows}


def wrong_accounts(seen: Seen, accounts: dict[str, Counts]) -> list[str]:
    """Return the keys whose accounts break the rule, with their numbers."""
    wrong = []
    for key in sorted(seen.whole.keys() | seen.cut.keys() | accounts.keys()):
        whole, found = seen.whole[key], accounts.get(key, [0] * 4)
        requests, prompt, cached, generated = (a - b for a, b in zip(found, whole, strict=True))
        may_be = (requests, prompt) in _subsets(seen.cut[key])
        if not (may_be and 0 <= cached <= prompt and 0 <= generated <= MAX_TOKENS * requests):
            wrong.append(f"{key}: accounts {found}, whole {whole}, cut prompts {seen.cut[key]}")
    return wrong


def _subsets(prompts: Counts) -> set[tuple[int, int]]:
    """Return (number, sum) of each subset."""
    found = {(0, 0)}
    for tokens in prompts:
        found |= {(count + 1, total + tokens) for count, total in found}
    return found


def run(folder: Path, *, requests: int, kills: int, keys: int, connections: int) -> list[str]:
    """Return what is wrong after a run; print how it went."""
    server, seen, chance = Server(folder, keys), Seen(), Random(0)
    begun_s = time.monotonic()
    for turn in range(kills + 1):
        server.start()
        limit = requests * (turn + 1) // (kills + 1)
        # More are sent than the limit until the server is gone: it is killed in the middle.
        clients = Clients(seen, requests if turn < kills else limit, keys, turn)
        asyncio.run(_turn(server, clients, seen, limit, connections, chance, is_last=turn == kills))
    server.stop()
    accounts = server.accounts()
    extra = sum(row[0] for row in accounts.values()) - seen.num_whole
    took_s = time.monotonic() - begun_s
    print(
        f"{seen.num_sent} requests of {keys} keys, {kills} kills: {seen.num_whole} whole, "
        f"{seen.num_cut} cut ({extra} of these counted); {took_s:.0f} s"
    )
    return wrong_accounts(seen, accounts)


async def _turn(
    server: Server, clients: Clients, seen: Seen, limit: int, connections: int, chance: Random,
    *, is_last: bool,
) -> None:  # fmt: skip
    """Let clients send, and kill the server in the middle unless it is the last turn."""
    sending = asyncio.ensure_future(clients.run(server.port, connections))
    while not is_last and seen.num_sent < limit and not sending.done():
        await asyncio.sleep(0.002)
    if not is_last:
        await asyncio.sleep(chance.random() * 0.05)
        what = chance.choice(["an API process", "the server"])
        await asyncio.to_thread(server.kill, what)
        print(f"killed {what} after {seen.num_sent} requests", flush=True)
    await sending


def main() -> None:
    """Run, and exit with 1 if accounts are wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--keys", type=int, default=50)
    parser.add_argument("--connections", type=int, default=32)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="accounts-") as name:
        wrong = run(
            Path(name), requests=chosen.requests, kills=chosen.kills, keys=chosen.keys,
            connections=chosen.connections,
        )  # fmt: skip
    print("\n".join(wrong) or "the accounts of every key are right")
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()

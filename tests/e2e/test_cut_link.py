"""A machine that joins a server that runs, is cut off, and joins again.

Requests without output run again elsewhere, and streams that had begun say so.

The other machine is a network namespace of this one. Nobody closes a connection when a link is cut:
both sides find out by themselves.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from dovetail.config.rules.machine.platform import usable_cores
from support.server_process import ServerProcess

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(usable_cores() < 2, reason="two engines need two cores"),
]
SECRET = {"DOVETAIL_DATA_PARALLEL_SECRET": "a secret for the tests alone"}
FAR, NEAR_IP, FAR_IP = f"far{os.getpid()}", "10.213.7.1", "10.213.7.2"
PORT = "29551"
NOTICED_S = 11.0
"""docs/how_to/many_engines.md: a machine that is gone without a word is noticed after so long."""
NUM_WHOLE, NUM_STREAMS = 4, 4
JOIN_LIMIT_S = 60.0


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


@dataclass(frozen=True, slots=True)
class Link:
    """A pair of interfaces: `name` is the one on this side."""

    name: str

    def set(self, state: str) -> None:
        """Cut it ("down"), or mend it ("up")."""
        ip("link", "set", self.name, state)


@pytest.fixture
def link() -> Iterator[Link]:
    """A namespace with a link to this one."""
    if shutil.which("ip") is None:
        pytest.skip("there is no command ip")
    try:
        ip("netns", "add", FAR)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespace can be made: {error.stderr.strip()}")
    near, far = f"v{os.getpid()}", f"w{os.getpid()}"
    try:
        ip("link", "add", near, "type", "veth", "peer", "name", far)
        ip("link", "set", far, "netns", FAR)
        ip("addr", "add", f"{NEAR_IP}/30", "dev", near)
        ip("link", "set", near, "up")
        for words in (("addr", "add", f"{FAR_IP}/30", "dev", far), ("link", "set", far, "up"),
                      ("link", "set", "lo", "up")):  # fmt: skip
            ip("netns", "exec", FAR, "ip", *words)
        yield Link(near)
    finally:
        ip("netns", "del", FAR)  # and the link with it


async def whole(client: httpx.AsyncClient) -> int:
    """Return the tokens of an answer that is sent whole."""
    body = {"prompt": "x", "max_tokens": 300, "ignore_eos": True}
    answer = await client.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    tokens: int = answer.json()["usage"]["completion_tokens"]
    return tokens


async def streamed(client: httpx.AsyncClient, begun: asyncio.Event) -> str | None:
    """Return the error at the end of a stream, None after a whole answer."""
    body = {"prompt": "x", "max_tokens": 300, "ignore_eos": True, "stream": True}
    async with client.stream("POST", "/v1/completions", json=body) as answer:
        async for line in answer.aiter_lines():
            begun.set()
            if line.startswith("data: {") and "error" in (part := json.loads(line[6:])):
                error: str = part["error"]["message"]
                return error
    return None


async def while_cut(server: ServerProcess, link: Link) -> tuple[list[int], list[str | None]]:
    """Return the tokens of whole answers and the errors of streams that began before the cut."""
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
        events = [asyncio.Event() for _ in range(NUM_STREAMS)]
        streams = [asyncio.ensure_future(streamed(client, event)) for event in events]
        answers = [asyncio.ensure_future(whole(client)) for _ in range(NUM_WHOLE)]
        for event in events:
            await event.wait()
        while (await client.get("/load")).json()["running"] < NUM_STREAMS + NUM_WHOLE:
            await asyncio.sleep(0.005)
        link.set("down")
        return await asyncio.gather(*answers), await asyncio.gather(*streams)


def states(client: httpx.Client) -> dict[int, str]:
    """Return the state of each engine."""
    health: dict[str, Any] = client.get("/health").json()
    return {one["engine"]: one["state"] for one in health["engines"]}


def wait_for(client: httpx.Client, state: str, lines: Sequence[str]) -> None:
    deadline_s = time.monotonic() + JOIN_LIMIT_S
    while states(client) != {0: "up", 1: state}:
        assert time.monotonic() < deadline_s, (states(client), "\n".join(lines))
        time.sleep(0.1)


def test_a_machine_joins_is_cut_off_and_joins_again(link: Link) -> None:
    flags = (
        "--data-parallel-size", "2", "--data-parallel-size-local", "1", "--cpu-cores", "nobind",
        "--data-parallel-address", NEAR_IP, "--data-parallel-rpc-port", PORT, "--port", "0",
        "--data-parallel-join-timeout", "0", "--data-parallel-router", "round_robin",
        "--enable-dev-endpoints", "--max-model-len", "1024",
    )  # fmt: skip
    far = ("--join", f"{NEAR_IP}:{PORT}", "--cpu-cores", "nobind")
    within = ("ip", "netns", "exec", FAR)
    with ServerProcess(*flags, env=SECRET) as server, server.wait_ready().client() as client:
        assert states(client) == {0: "up", 1: "dead"}
        assert "engine 1" not in client.get("/metrics").text
        with ServerProcess(*far, env=SECRET, within=within) as joined:
            wait_for(client, "up", joined.lines)
            joined.descendants()
            begun_s = time.monotonic()
            tokens, errors = asyncio.run(while_cut(server, link))
            assert tokens == [300] * NUM_WHOLE
            lost = [error for error in errors if error is not None]
            assert len(lost) == NUM_STREAMS // 2  # by turns, half were the other machine's
            assert all("engine 1" in error for error in lost)
            assert states(client) == {0: "up", 1: "dead"}
            answer = client.post("/v1/completions", json={"prompt": "x", "max_tokens": 2})
            assert answer.status_code == 200
            assert joined.wait() == 1
            assert time.monotonic() - begun_s < 2 * NOTICED_S
            assert joined.orphans(5.0) == []
        link.set("up")
        with ServerProcess(*far, env=SECRET, within=within) as joined:
            wait_for(client, "up", joined.lines)
            with ServerProcess(*far, env=SECRET, within=within) as third:
                assert third.wait() == 2
                assert any("has no place" in line for line in third.lines)
            drained = client.post("/engines/drain", json={"engine": 1, "timeout": 5})
            assert drained.status_code == 200, drained.text
            assert joined.wait() == 0
        assert states(client) == {0: "up", 1: "removed"}

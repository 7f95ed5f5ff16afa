"""A machine behind a network link that is cut: what had not begun runs again, what had says so.

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
from collections.abc import Iterator
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


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


@dataclass(frozen=True, slots=True)
class Link:
    """A pair of interfaces: `name` is the one on this side."""

    name: str

    def cut(self) -> None:
        ip("link", "set", self.name, "down")


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
        link.cut()
        return await asyncio.gather(*answers), await asyncio.gather(*streams)


def test_both_sides_of_a_cut_link_go_on_or_end(link: Link) -> None:
    flags = (
        "--data-parallel-size", "2", "--data-parallel-size-local", "1", "--cpu-cores", "nobind",
        "--data-parallel-address", NEAR_IP, "--data-parallel-rpc-port", PORT,
    )  # fmt: skip
    far = ("--headless", "--data-parallel-start-rank", "1", *flags)
    near = ("--port", "0", *flags, "--data-parallel-router", "round_robin")
    with (
        ServerProcess(*far, env=SECRET, within=("ip", "netns", "exec", FAR)) as headless,
        ServerProcess(*near, env=SECRET) as server,
    ):
        server.wait_ready()
        headless.descendants()
        begun_s = time.monotonic()
        tokens, errors = asyncio.run(while_cut(server, link))
        assert tokens == [300] * NUM_WHOLE
        lost = [error for error in errors if error is not None]
        assert len(lost) == NUM_STREAMS // 2  # by turns, half were the other machine's
        assert all("engine 1" in error for error in lost)
        with server.client() as client:
            health: dict[str, Any] = client.get("/health").json()
            states = {one["engine"]: one["state"] for one in health["engines"]}
            assert (health["status"], states) == ("degraded", {0: "up", 1: "dead"})
            answer = client.post("/v1/completions", json={"prompt": "x", "max_tokens": 2})
            assert answer.status_code == 200
        assert headless.wait() == 1
        assert time.monotonic() - begun_s < 2 * NOTICED_S
        assert headless.orphans(5.0) == []

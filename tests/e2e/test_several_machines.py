"""`dovetail serve` and `dovetail serve --headless`, joined by an address, as on two machines."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from dovetail.config.rules.machine.platform import usable_cores
from support.orphans import survivors
from support.server_process import ServerProcess

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(usable_cores() < 2, reason="two engines need two cores"),
]
SECRET = {"DOVETAIL_DATA_PARALLEL_SECRET": "a secret for the tests alone"}
ENGINE = "dovetail.engine.process"
NUM_STREAMS = 8


@dataclass(frozen=True, slots=True)
class Machines:
    """The server, and the headless process that runs its other engine."""

    server: ServerProcess
    headless: ServerProcess
    flags: tuple[str, ...]


@pytest.fixture(scope="module")
def machines() -> Iterator[Machines]:
    """The first has two API processes and engine 0, the second engine 1."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    flags = (
        "--data-parallel-size", "2", "--data-parallel-size-local", "1", "--enable-sleep-mode",
        "--data-parallel-address", "127.0.0.1", "--data-parallel-rpc-port", str(port),
        "--cpu-cores", "nobind",
    )  # fmt: skip
    with ExitStack() as stack:
        headless = stack.enter_context(
            ServerProcess("--headless", "--data-parallel-start-rank", "1", *flags, env=SECRET)
        )
        words = (
            "--port", "0", *flags, "--api-server-count", "2", "--enable-dev-endpoints",
            "--data-parallel-router", "round_robin",
        )  # fmt: skip
        server = stack.enter_context(ServerProcess(*words, env=SECRET))
        server.wait_ready()
        headless.descendants()
        yield Machines(server, headless, flags)


def completion(client: httpx.Client, **body: Any) -> Any:
    usual = {"prompt": "The capital of France is", "max_tokens": 8, "temperature": 0}
    answer = client.post("/v1/completions", json=usual | body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_both_machines_answer_as_one_engine(machines: Machines) -> None:
    with machines.server.client() as client:
        texts = {completion(client)["choices"][0]["text"] for _ in range(8)}
        assert len(texts) == 1 and "Paris" in texts.pop()
        digits = completion(client, prompt="x", structured_outputs={"regex": "[0-9]{4}"}, n=2)
        assert all(choice["text"].isdigit() for choice in digits["choices"])
        told = client.get("/health").json()["engines"]
        assert [(one["engine"], one["state"]) for one in told] == [(0, "up"), (1, "up")]
        assert [one.get("machine") for one in told] == [None, socket.gethostname()]
        lines = client.get("/metrics").text.splitlines()
        counted = [line for line in lines if line.startswith("vllm:request_success_total{")]
        busy = {line.split('engine="')[1][0] for line in counted if not line.endswith(" 0.0")}
        assert busy == {"0", "1"}
        waits = [line for line in lines if line.startswith("vllm:request_queue_time_seconds_sum")]
        assert all(0 <= float(line.rsplit(" ", 1)[1]) < 5 for line in waits)
        assert client.post("/sleep").status_code == 200
        assert {one["state"] for one in client.get("/health").json()["engines"]} == {"asleep"}
        assert client.post("/wake_up").status_code == 200


def test_another_machine_with_other_flags_is_told_and_nothing_changes(machines: Machines) -> None:
    words = ("--headless", "--data-parallel-start-rank", "1", *machines.flags)
    with ServerProcess(*words, env=SECRET) as late:
        assert late.wait() == 2
        assert any("engine 1 has joined already" in line for line in late.lines)
    with machines.server.client() as client:
        completion(client)


def test_a_lost_machine_loses_no_answer_that_had_not_begun(machines: Machines) -> None:
    server, headless = machines.server, machines.headless
    engines = [child for child in headless.descendants() if ENGINE in child.cmdline()]

    async def long_answer(client: httpx.AsyncClient) -> int:
        body = {"prompt": "x", "max_tokens": 400, "ignore_eos": True}
        return (await client.post("/v1/completions", json=body)).status_code

    async def main() -> list[int]:
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
            tasks = [asyncio.ensure_future(long_answer(client)) for _ in range(NUM_STREAMS)]
            while (await client.get("/load")).json()["running"] < NUM_STREAMS:
                await asyncio.sleep(0.005)
            headless.process.send_signal(signal.SIGKILL)
            return await asyncio.gather(*tasks)

    assert set(asyncio.run(main())) == {200}  # those without output ran again
    assert survivors(engines, 2.0) == []
    with server.client() as client:
        deadline_s = time.monotonic() + 2
        dead: list[Any] = []
        while not dead:
            assert time.monotonic() < deadline_s
            told = client.get("/health").json()
            dead = [one for one in told.get("engines", ()) if one["state"] == "dead"]
        (lost,) = dead
        assert told["status"] == "degraded"
        assert lost["engine"] == 1 and lost["machine"] == socket.gethostname()
        assert "does not start engines of other machines again" in lost["reason"]
        completion(client)
    server.process.send_signal(signal.SIGTERM)
    assert server.wait() == 0
    assert server.orphans(5.0) == []


def test_the_end_of_a_server_without_engines_ends_those_of_other_machines() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    flags = (
        "--data-parallel-size-local", "0", "--data-parallel-address", "127.0.0.1",
        "--data-parallel-rpc-port", str(port),
    )  # fmt: skip
    far = ("--headless", *flags[2:])
    with (
        ServerProcess("--port", "0", *flags, env=SECRET) as server,
        ServerProcess(*far, env=SECRET) as headless,
    ):
        with server.wait_ready().client() as client:
            assert "Paris" in completion(client)["choices"][0]["text"]
        children = headless.descendants()
        assert children
        os.kill(server.process.pid, signal.SIGKILL)
        begun_s = time.monotonic()
        assert headless.wait() == 1
        assert survivors(children, 2.0) == []
        assert time.monotonic() - begun_s < 2.0
        assert any("is gone; ending" in line for line in headless.lines)

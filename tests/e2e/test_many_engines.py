"""`dovetail serve --data-parallel-size 2`, two API processes: answers, calls, a death, the end."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterator
from typing import Any

import httpx
import psutil
import pytest

from dovetail import LLM
from dovetail.config.rules.machine.platform import usable_cores
from dovetail.interfaces.data.sampling_params import SamplingParams
from support.server_process import ServerProcess

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(usable_cores() < 2, reason="two engines need two cores"),
]
PROMPTS = ("The capital of France is", "One two three", "Water is", "A dog")
NUM_STREAMS = 8


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with ServerProcess(
        "--port", "0", "--data-parallel-size", "2", "--api-server-count", "2",
        "--data-parallel-router", "round_robin", "--enable-sleep-mode", "--enable-dev-endpoints",
        "--engine-step-timeout", "20",
    ) as server:  # fmt: skip
        yield server.wait_ready()


def engines_of(server: ServerProcess) -> list[psutil.Process]:
    found = server.descendants()
    return [child for child in found if "dovetail.engine.process" in child.cmdline()]


def completion(client: httpx.Client, **body: Any) -> Any:
    answer = client.post("/v1/completions", json={"max_tokens": 8, "temperature": 0} | body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def finished_by_engine(client: httpx.Client) -> dict[str, float]:
    """Return how many requests each engine has finished."""
    counts: dict[str, float] = {}
    for line in client.get("/metrics").text.splitlines():
        if line.startswith("vllm:request_success_total{"):
            name = line.split('engine="')[1].split('"')[0]
            counts[name] = counts.get(name, 0.0) + float(line.rsplit(" ", 1)[1])
    return counts


def offline_answers(**flags: Any) -> dict[tuple[str, bool], list[str]]:
    """Return an LLM's answers to each prompt, greedy ones and seeded ones."""
    found = {}
    with LLM(enforce_eager=True, **flags) as llm:
        for fields in ({"temperature": 0.0}, {"temperature": 1.0, "seed": 7, "n": 2}):
            params = SamplingParams(max_tokens=8, **fields)  # type: ignore[arg-type]
            results = llm.generate(list(PROMPTS), params, use_tqdm=False)
            for prompt, result in zip(PROMPTS, results, strict=True):
                found[prompt, "n" in fields] = [one.text for one in result.outputs]
    return found


def test_answers_are_those_of_one_engine_and_both_gave_some(server: ServerProcess) -> None:
    wanted = offline_answers()
    assert offline_answers(data_parallel_size=2) == wanted
    with server.client() as client:
        for (prompt, is_seeded), texts in wanted.items():
            fields = {"temperature": 1.0, "seed": 7, "n": 2} if is_seeded else {}
            for _ in range(4):  # two API processes, two engines
                choices = completion(client, prompt=prompt, **fields)["choices"]
                assert [choice["text"] for choice in choices] == texts
        counts = finished_by_engine(client)
        assert set(counts) == {"0", "1"} and min(counts.values()) >= 8


def test_what_goes_beyond_one_generation_works_as_before(server: ServerProcess) -> None:
    with server.client() as client:
        many = completion(client, prompt=list(PROMPTS), cache_salt="s")
        assert [choice["index"] for choice in many["choices"]] == [0, 1, 2, 3]
        beams = completion(client, prompt=PROMPTS[0], use_beam_search=True, n=2, max_tokens=3)
        assert len(beams["choices"]) == 2
        digits = completion(client, prompt="x", structured_outputs={"regex": "[0-9]{4}"})
        assert digits["choices"][0]["text"].isdigit()


def test_health_tells_of_each_and_calls_reach_each(server: ServerProcess) -> None:
    with server.client() as client:
        told = client.get("/health").json()
        assert told["status"] == "ok"
        assert [(one["engine"], one["state"]) for one in told["engines"]] == [(0, "up"), (1, "up")]
        assert client.post("/reset_prefix_cache").status_code == 200
        assert client.post("/sleep").status_code == 200
        states = {one["state"] for one in client.get("/health").json()["engines"]}
        assert states == {"asleep"}
        refused = client.post("/v1/completions", json={"prompt": "x"})
        assert refused.status_code == 503
        assert client.post("/wake_up").status_code == 200
        assert client.get("/is_sleeping").json() == {"is_sleeping": False}
        completion(client, prompt="x")


def test_a_killed_engine_ends_its_requests_and_no_others(server: ServerProcess) -> None:
    first, second = engines_of(server)
    victim = max(first, second, key=lambda child: child.pid)

    async def long_answer(client: httpx.AsyncClient) -> int:
        body = {"prompt": "x", "max_tokens": 400, "ignore_eos": True}
        return (await client.post("/v1/completions", json=body)).status_code

    async def main() -> list[int]:
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
            tasks = [asyncio.ensure_future(long_answer(client)) for _ in range(NUM_STREAMS)]
            while (await client.get("/load")).json()["running"] < NUM_STREAMS:
                await asyncio.sleep(0.005)
            victim.kill()
            return await asyncio.gather(*tasks)

    statuses = asyncio.run(main())
    assert set(statuses) == {200, 503}
    with server.client() as client:
        deadline_s = time.monotonic() + 2
        while (told := client.get("/health").json())["status"] != "degraded":
            assert time.monotonic() < deadline_s
            time.sleep(0.02)
        dead = [one for one in told["engines"] if one["state"] == "dead"]
        assert len(dead) == 1 and dead[0]["reason"]
        for _ in range(4):
            completion(client, prompt="x", max_tokens=2)
        assert client.get("/ready").status_code == 200
        up = [line for line in client.get("/metrics").text.splitlines() if "engine_up{" in line]
        assert sorted(line.rsplit(" ", 1)[1] for line in up) == ["0.0", "1.0"]


def test_the_end_leaves_nothing(server: ServerProcess) -> None:
    server.process.send_signal(signal.SIGTERM)
    assert server.wait() == 0
    assert server.orphans(5.0) == []

"""`dovetail serve --data-parallel-size 2`, two API processes: answers, calls, a death, the end."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import psutil
import pytest

from dovetail import LLM
from dovetail.cli.main import main
from dovetail.config.rules.machine.platform import usable_cores
from dovetail.interfaces.data.sampling_params import SamplingParams
from support import killing_policy
from support.orphans import command_of
from support.server_process import ServerProcess

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(usable_cores() < 2, reason="two engines need two cores"),
]
PROMPTS = ("The capital of France is", "One two three", "Water is", "A dog")
NUM_STREAMS = 8
LIMIT_S = 60.0


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with ServerProcess(
        "--port", "0", "--data-parallel-size", "2", "--api-server-count", "2",
        "--data-parallel-router", "round_robin", "--enable-sleep-mode", "--enable-dev-endpoints",
        "--engine-step-timeout", "20", "--scheduling-policy", f"{killing_policy.__file__}:Killing",
    ) as server:  # fmt: skip
        yield server.wait_ready()


def engines_of(server: ServerProcess) -> list[psutil.Process]:
    found = server.descendants()
    return [child for child in found if "dovetail.engine.process" in command_of(child)]


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


async def answer_of(client: httpx.AsyncClient, seed: int, **body: Any) -> httpx.Response:
    usual = {"prompt": f"{seed} x", "max_tokens": 200, "ignore_eos": True, "seed": seed}
    return await client.post("/v1/completions", json=usual | body)


async def texts_of(client: httpx.AsyncClient) -> list[str]:
    """Return the answers to many requests at a time, each a single message."""
    answers = await asyncio.gather(*(answer_of(client, seed) for seed in range(NUM_STREAMS)))
    for answer in answers:
        assert answer.status_code == 200, answer.text
    return [answer.json()["choices"][0]["text"] for answer in answers]


async def num_restarts(client: httpx.AsyncClient) -> int | None:
    """Return how often the engines were started again; None while one is not alive."""
    health = (await client.get("/health")).json()
    counts = [one.get("restarts", 0) for one in health.get("engines", ())]
    return sum(counts) if health["status"] == "ok" else None


async def whole_again(client: httpx.AsyncClient, restarts: int) -> None:
    """Wait until every API process reports both engines alive and this number of restarts."""
    num_good, limit_s = 0, time.monotonic() + LIMIT_S
    while num_good < 8:
        found = await num_restarts(client)
        num_good = num_good + 1 if found == restarts else 0
        assert time.monotonic() < limit_s, (found, restarts)
        await asyncio.sleep(0.05)


def test_a_killed_engine_comes_back_and_only_begun_streams_are_lost(server: ServerProcess) -> None:
    victim = engines_of(server)[-1]

    async def streamed(client: httpx.AsyncClient, seed: int, begun: list[int]) -> str:
        body = {"prompt": "y", "max_tokens": 400, "ignore_eos": True, "stream": True, "seed": seed}
        last = ""
        async with client.stream("POST", "/v1/completions", json=body) as answer:
            async for line in answer.aiter_lines():
                begun.append(seed)
                last = line or last
                if '"error"' in line:
                    return line
        return last

    async def main() -> None:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        async with httpx.AsyncClient(base_url=server.url, timeout=120, limits=limits) as client:
            before = await num_restarts(client)
            assert before is not None
            wanted, begun = await texts_of(client), list[int]()
            streams = [asyncio.ensure_future(streamed(client, n, begun)) for n in range(4)]
            while len(set(begun)) < 4:
                await asyncio.sleep(0.005)
            whole = asyncio.ensure_future(texts_of(client))
            while (await client.get("/load")).json()["running"] < 4 + NUM_STREAMS:
                await asyncio.sleep(0.005)
            victim.kill()
            ends = await asyncio.gather(*streams)
            assert set(ends) - {"data: [DONE]"}, "no stream was in the engine that was killed"
            for end in set(ends) - {"data: [DONE]"}:
                assert "engine_dead" in end and "after the answer had begun" in end, end
            assert await whole == wanted
            told = (await client.get("/health")).json()
            assert told["status"] == "degraded"
            (dead,) = [one for one in told["engines"] if one["state"] != "up"]
            assert (dead["state"], bool(dead["reason"])) == ("restarting", True)
            assert (await client.get("/ready")).status_code == 200
            await whole_again(client, before + 1)
            assert await texts_of(client) == wanted
            lines = (await client.get("/metrics")).text.splitlines()
            pairs = [line.rsplit(" ", 1) for line in lines if not line.startswith("#")]
            numbers = {name: float(number) for name, number in pairs}
            name = f'{{engine="{dead["engine"]}"}}'
            assert numbers[f"dovetail:engine_restarts_total{name}"] == 1
            assert numbers[f"dovetail:engine_up{name}"] == 1
            assert numbers[f"dovetail:engine_restarting{name}"] == 0
            assert numbers["dovetail:requests_run_again_total"] >= 1

    asyncio.run(main())


def test_a_request_that_kills_engines_is_refused_and_the_others_answered(
    server: ServerProcess,
) -> None:
    async def main() -> None:
        async with httpx.AsyncClient(base_url=server.url, timeout=120) as client:
            before = await num_restarts(client)
            assert before is not None
            wanted = await texts_of(client)
            whole = asyncio.ensure_future(texts_of(client))
            refused = await answer_of(client, 1, request_id=f"{killing_policy.WORD}-it")
            assert refused.status_code == 422, refused.text
            assert refused.json()["error"]["code"] == "engine_died_each_time"
            assert await whole == wanted
            await whole_again(client, before + 3)

    asyncio.run(main())


def engines(server: ServerProcess, capsys: pytest.CaptureFixture[str], *words: str) -> list[Any]:
    """Return what `dovetail engines` prints of a server's engines."""
    assert main(["engines", *words, "--url", server.url, "--json"]) == 0
    return list(json.loads(capsys.readouterr().out))


def test_engines_leave_and_come_back_under_load(
    server: ServerProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    """No request fails, whichever API process is asked; the last engine stays."""
    ends: Counter[bool] = Counter()
    is_over = threading.Event()
    limits = httpx.Limits(max_keepalive_connections=0)  # each to any API process

    def ask(seed: int) -> None:
        body = {"prompt": f"{seed} x", "max_tokens": 60, "ignore_eos": True, "seed": seed}
        with httpx.Client(base_url=server.url, timeout=60, limits=limits) as client:
            wanted: str | None = None
            while not is_over.is_set():
                answer = client.post("/v1/completions", json=body)
                text = answer.json()["choices"][0]["text"] if answer.status_code == 200 else ""
                wanted = wanted or text
                ends[bool(text) and text == wanted] += 1

    with ThreadPoolExecutor(8) as pool:
        asking = [pool.submit(ask, seed) for seed in range(8)]
        try:
            for number in ("0", "1"):
                states = engines(server, capsys, "drain", number, "--timeout", "20")
                assert states[int(number)]["state"] == "removed"
                until_s = time.monotonic() + LIMIT_S
                while len(engines_of(server)) > 1:
                    assert time.monotonic() < until_s
                    time.sleep(0.05)
                assert main(["engines", "drain", str(1 - int(number)), "--url", server.url]) != 0
                assert "last one" in capsys.readouterr().err
                assert engines(server, capsys, "add", number)[int(number)]["state"] == "up"
        finally:
            is_over.set()
    assert [task.result() for task in asking] and set(ends) == {True} and ends[True] > 30
    assert engines(server, capsys, "remove", "1")[1]["state"] == "removed"
    until_s = time.monotonic() + LIMIT_S
    while 'engine_up{engine="1"}' in (shown := httpx.get(f"{server.url}/metrics").text):
        assert time.monotonic() < until_s
        time.sleep(0.05)
    assert 'dovetail:engine_up{engine="0"} 1.0' in shown
    assert engines(server, capsys, "add", "1")[1]["state"] == "up"
    until_s, num_good = time.monotonic() + LIMIT_S, 0
    while num_good < 8:  # until every API process knows
        assert time.monotonic() < until_s
        states = engines(server, capsys, "list")
        num_good = num_good + 1 if {one["state"] for one in states} == {"up"} else 0
        time.sleep(0.1)


def test_the_end_leaves_nothing(server: ServerProcess) -> None:
    server.process.send_signal(signal.SIGTERM)
    assert server.wait() == 0
    assert server.orphans(5.0) == []

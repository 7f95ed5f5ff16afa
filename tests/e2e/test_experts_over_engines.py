"""`dovetail serve -dp 2 --enable-expert-parallel`: two engines, each with half of the experts."""

from __future__ import annotations

import asyncio
import re
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from dovetail import LLM
from dovetail.config.rules.machine.platform import usable_cores
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail_testing.tiny.models import write_tiny_checkpoint
from support.server_process import ServerProcess

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(usable_cores() < 2, reason="two engines need two cores"),
]
PROMPTS = [list(range(3, 22)), list(range(40, 63)), [5, 6, 7], list(range(3, 30)), [9]]
LENGTHS = [14, 3, 20, 8, 1]
BALANCE = '{"step_interval": 5, "num_redundant_experts": 2, "log_balancedness": true}'


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("m") / "model", "Qwen2MoeForCausalLM")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[ServerProcess]:
    with ServerProcess(
        "--port", "0", "--model", str(folder), "--served-model-name", "m", "--dtype", "float32",
        "--max-model-len", "64", "--max-num-batched-tokens", "16", "-dp", "2",
        "--enable-expert-parallel", "--enable-eplb", "--eplb-config", BALANCE,
        "--all2all-backend", "all_to_all", "--data-parallel-router", "round_robin",
        env={"OMP_NUM_THREADS": "1"},
    ) as server:  # fmt: skip
        yield server.wait_ready()


def engines_of(server: ServerProcess) -> list[psutil.Process]:
    found = server.descendants()
    return [child for child in found if "dovetail.engine.process" in child.cmdline()]


def body_of(number: int, **fields: Any) -> dict[str, Any]:
    body = {"model": "m", "prompt": PROMPTS[number], "max_tokens": LENGTHS[number]}
    return body | {"temperature": 0, "ignore_eos": True, "return_token_ids": True} | fields


def test_answers_are_those_of_one_engine(server: ServerProcess, folder: Path) -> None:
    """Alone, while the other engine has nothing to do, and side by side; experts move meanwhile."""
    assert_answers(server, wanted_of(folder))
    assert any(re.search(r"experts: balance .* after [1-9]\d* moves", x) for x in server.lines)


def wanted_of(folder: Path) -> list[list[int]]:
    """Return what one engine answers."""
    with LLM(str(folder), dtype="float32", max_model_len=64, use_tqdm_on_load=False) as llm:
        params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in LENGTHS]
        results = llm.generate(PROMPTS, params, use_tqdm=False)
    return [list(result.outputs[0].token_ids) for result in results]


def assert_answers(server: ServerProcess, wanted: list[list[int]]) -> None:
    """Assert that a server answers so, to one request at a time and to many."""

    async def one(client: httpx.AsyncClient, number: int) -> list[int]:
        answer = await client.post("/v1/completions", json=body_of(number))
        found: list[int] = answer.raise_for_status().json()["choices"][0]["token_ids"]
        return found

    async def main() -> None:
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
            for number, tokens in enumerate(wanted):
                assert await one(client, number) == tokens
            for _ in range(2):
                numbers = [number for number in range(len(wanted)) for _ in range(2)]
                found = await asyncio.gather(*(one(client, number) for number in numbers))
                assert found == [wanted[number] for number in numbers]

    asyncio.run(main())


@pytest.mark.slow
@pytest.mark.parametrize("exchange", ["all_to_all", "allgather_reducescatter"])
def test_engines_divide_a_step_together_or_not_at_all(folder: Path, exchange: str) -> None:
    """In half batches, while exchanges overlap; an engine alone, whose other one has nothing to
    divide, runs whole steps."""
    with ServerProcess(
        "--port", "0", "--model", str(folder), "--served-model-name", "m", "--dtype", "float32",
        "--max-model-len", "64", "--max-num-batched-tokens", "16", "-dp", "2",
        "--enable-expert-parallel", "--all2all-backend", exchange, "--communicator", "gloo",
        "--enable-dbo", "--dbo-decode-token-threshold", "2", "--dbo-prefill-token-threshold", "2",
        "--data-parallel-router", "round_robin", env={"OMP_NUM_THREADS": "1"},
    ) as server:  # fmt: skip
        server.wait_ready()
        assert_answers(server, wanted_of(folder))
        with server.client() as client:
            told = client.get("/metrics").text
        found = re.findall(r'^dovetail:divided_steps_total\{engine="(\d)".*\} (\S+)$', told, re.M)
        counts = {engine: float(count) for engine, count in found}
        assert counts.keys() == {"0", "1"} and counts["0"] == counts["1"] >= 3


def test_an_engine_that_ends_ends_both_and_both_come_back(
    server: ServerProcess, folder: Path
) -> None:
    victim, other = engines_of(server)
    wanted = wanted_of(folder)
    with server.client() as client, ThreadPoolExecutor() as pool:
        asking = [pool.submit(assert_answers, server, wanted) for _ in range(4)]
        while client.get("/load").json()["running"] < 4:
            time.sleep(0.005)
        started_s = time.monotonic()
        victim.kill()
        while (answer := client.get("/health")).status_code != 503:
            assert time.monotonic() < started_s + 3
            time.sleep(0.02)
        assert "is being started again" in answer.json()["error"]["message"]
        for one in asking:
            one.result()
        assert_answers(server, wanted)
        engines = client.get("/health").json()["engines"]
    assert [(one["state"], one["restarts"]) for one in engines] == [("up", 1), ("up", 1)]
    (own, its) = sorted((one["last_death"] for one in engines), key=lambda x: "signal 9" not in x)
    assert own == "the engine process was killed by signal 9."
    assert re.search(r"engine \d, whose experts it needs, has ended|rank \d .* has ended", its)
    assert not other.is_running()
    server.process.send_signal(signal.SIGTERM)
    assert server.wait(20) == 0
    assert server.orphans(5.0) == []

"""Ranks that torchrun starts: offline all go in step; served, the first one drives the others."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from dovetail.cli.main import main
from dovetail.config.rules.machine.launch import launch_of
from dovetail.errors import ConfigError
from dovetail.processes.process import child_environment
from dovetail_testing.tiny.models import write_tiny_checkpoint
from support import ranks_answers

pytestmark = pytest.mark.e2e

LAUNCHED = {"tensor_parallel_size": 2, "distributed_executor_backend": "external_launcher"}
SCRIPT = str(Path(ranks_answers.__file__))
VARIABLES = {
    "RANK": "1",
    "WORLD_SIZE": "2",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("launched") / "model"
    return str(write_tiny_checkpoint(folder, "Qwen3ForCausalLM", num_key_value_heads=1))


def free_port() -> int:
    """Return a port that nobody listens at just now."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def agent(*words: str, port: int, nodes: int = 1, node: int = 0, **env: str) -> Iterator[Any]:
    """Run a torchrun agent; what is left of it and below it is killed at the end."""
    per_node = str(2 // nodes)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", per_node]
    command += ["--nnodes", str(nodes), "--node-rank", str(node)]
    command += ["--master-addr", "127.0.0.1", "--master-port", str(port), *words]
    variables = child_environment() | {"OMP_NUM_THREADS": "1"} | env
    with subprocess.Popen(
        command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                for left in [*_below(process.pid), process]:
                    left.kill()


def _below(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).children(recursive=True)


def asked(model: str, **flags: Any) -> str:
    return json.dumps({"model": model, **LAUNCHED, **flags})


def assert_same(ours: list[Any], wanted: list[Any]) -> None:
    """Assert equal tokens, and logprobs equal up to the order of sums."""
    for mine, theirs in zip(ours, wanted, strict=True):
        assert mine["ids"] == theirs["ids"] and mine["error"] == theirs["error"] == "None"
        for one, other in zip(mine["logprobs"], theirs["logprobs"], strict=True):
            assert one == pytest.approx(other, abs=2e-3)


def test_two_ranks_go_in_step_and_answer_as_one(model: str) -> None:
    flags = asked(model, worker_extension_cls=f"{SCRIPT}:Methods")
    with agent(SCRIPT, flags, "apart", port=free_port()) as process:
        text, _ = process.communicate(timeout=100)
    told = ranks_answers.read(text)
    assert len(told) == 2, text
    assert sorted(ranks_answers.read(text, ranks_answers.CALLED)) == [[0, 1], [1]], text
    assert told[0] == told[1]
    assert process.returncode != 0 and "rank 1 is out of step" in text, text
    assert_same(told[0][:3], ranks_answers.answers({"model": model})[:3])


@pytest.mark.machines
def test_two_agents_as_on_two_machines(model: str) -> None:
    port = free_port()
    with ExitStack() as stack:
        words = (SCRIPT, asked(model, async_scheduling=True))
        both = [stack.enter_context(agent(*words, port=port, nodes=2, node=n)) for n in range(2)]
        texts = [process.communicate(timeout=100)[0] for process in both]
    told = [one for text in texts for one in ranks_answers.read(text)]
    assert [process.returncode for process in both] == [0, 0], texts
    assert told[0] == told[1]
    assert_same(told[0][:3], ranks_answers.answers({"model": model})[:3])


@pytest.mark.machines
def test_two_stages_go_in_step(model: str) -> None:
    """The engine of the first stage hears from the last one what it did not draw itself."""
    words = asked(model, tensor_parallel_size=1, pipeline_parallel_size=2)
    with agent(SCRIPT, words, port=free_port()) as process:
        text, _ = process.communicate(timeout=100)
    told = ranks_answers.read(text)
    assert process.returncode == 0 and len(told) == 2, text
    assert told[0] == told[1]
    assert_same(told[0][:3], ranks_answers.answers({"model": model})[:3])


@pytest.mark.machines
def test_other_flags_on_another_rank_are_told(model: str) -> None:
    port = free_port()
    with ExitStack() as stack:
        both = [
            stack.enter_context(
                agent(SCRIPT, asked(model, max_num_seqs=4 + n), port=port, nodes=2, node=n)
            )
            for n in range(2)
        ]
        texts = [process.communicate(timeout=100)[0] for process in both]
    assert all("max_rows is 5 there and 4 at rank 0" in text for text in texts), texts


@pytest.mark.machines
def test_the_first_rank_serves_and_ends_with_the_others() -> None:
    port, http = free_port(), free_port()
    words = ["-m", "dovetail", "serve", "--port", str(http), "--tensor-parallel-size", "2"]
    words += ["--distributed-executor-backend", "external_launcher"]
    with agent(*words, port=port) as process, httpx.Client(timeout=30) as client:
        url = f"http://127.0.0.1:{http}"
        assert _status(client, url, 200, 90)
        body = {"prompt": "The capital of France is", "max_tokens": 4, "temperature": 0}
        answer = client.post(f"{url}/v1/completions", json=body).raise_for_status()
        assert "Paris" in answer.json()["choices"][0]["text"]
        children = _below(process.pid)
        follower = max(psutil.Process(process.pid).children(), key=lambda child: child.pid)
        follower.send_signal(signal.SIGKILL)
        _, left = psutil.wait_procs(children, timeout=20)
        assert not left, left
        process.communicate(timeout=40)


def _status(client: httpx.Client, url: str, wanted: int, limit_s: float) -> bool:
    """Return whether the server's health becomes this status in time."""
    deadline_s = time.monotonic() + limit_s
    while time.monotonic() < deadline_s:
        try:
            if client.get(f"{url}/health").status_code == wanted:
                return True
        except httpx.TransportError:
            time.sleep(0.1)
        time.sleep(0.05)
    return False


def test_a_launcher_is_needed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    words = ["serve", "--distributed-executor-backend", "external_launcher"]
    assert main(words) == 2
    assert "needs the variable RANK" in capsys.readouterr().err
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    assert main(words) == 2
    error = capsys.readouterr().err
    assert "the launcher started 2 ranks, and the flags divide the model over 1" in error
    assert "--tensor-parallel-size" in error


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"RANK": "2"}, "contradict one another: RANK=2, WORLD_SIZE=2"),
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE is 'two'"),
        ({"MASTER_PORT": "0"}, "MASTER_PORT"),
        ({"MASTER_ADDR": ""}, "MASTER_ADDR"),
    ],
)
def test_what_a_launcher_tells(changed: dict[str, str], told: str) -> None:
    found = launch_of(VARIABLES)
    assert (found.rank, found.size, found.is_one_machine) == (1, 2, True)
    with pytest.raises(ConfigError, match=told):
        launch_of(VARIABLES | changed)
    other = launch_of(VARIABLES | {"MASTER_PORT": "29501"})
    assert found.seed != other.seed and found.seed == launch_of(VARIABLES | {"RANK": "0"}).seed
    assert os.environ.get("RANK") is None

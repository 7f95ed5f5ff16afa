"""Two Ray nodes that two `ray start` commands have made, and what `dovetail serve` does with them.

Skipped where Ray is not installed; `make test-machines` installs it.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest

from dovetail.processes.process import child_environment
from dovetail_testing.tiny.models import write_tiny_checkpoint
from support.orphans import survivors
from support.server_process import ServerProcess

pytest.importorskip("ray", reason="ray is not installed; make test-machines installs it")
pytestmark = [pytest.mark.e2e, pytest.mark.machines]

START_LIMIT_S = 60.0
RANKS = ("-tp", "2", "--distributed-executor-backend", "ray")
ENGINES = ("-dp", "2", "--data-parallel-backend", "ray")
NSYS = """#!/bin/sh
# Instead of the profiler: writes down its options, and runs the program.
while [ "$1" != python ] && [ $# -gt 1 ]; do noted="$noted $1"; shift; done
echo "$noted" >> "$(dirname "$0")/calls"
if [ "$1" = python ]; then exec "$@"; fi
"""


class Nodes:
    """A cluster: the environment of who uses it, and the folder of programs on its PATH."""

    def __init__(self, folder: Path, programs: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        self.programs = programs
        self.token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        self.address = {"RAY_ADDRESS": f"127.0.0.1:{port}"}
        self.folders = (folder / "head", folder / "other")
        self.commands = (
            ("--head", "--port", str(port), "--include-dashboard", "false"),
            ("--address", self.address["RAY_ADDRESS"]),
        )

    @property
    def user(self) -> dict[str, str]:
        """Return the variables with which a program uses the cluster."""
        return self.token | self.address


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    """Two nodes with one CPU each; `python` is not theirs by PATH, and nsys not there at first."""
    folder = Path(f"/tmp/dovetail-ray-{os.getpid()}")  # sockets' names may not be long
    with ExitStack() as stack:
        programs = folder / "programs"
        programs.mkdir(parents=True)
        stack.callback(_remove, folder)
        made = Nodes(folder, programs)
        path = os.pathsep.join([str(programs), "/usr/local/bin", "/usr/bin", "/bin"])
        env = child_environment() | made.token | {"PATH": path, "RAY_USAGE_STATS_ENABLED": "0"}
        for words, temp in zip(made.commands, made.folders, strict=True):
            command = [Path(sys.executable).parent / "ray", "start", "--block", "--num-cpus", "1"]
            with (folder / f"{temp.name}.log").open("wb") as log:
                process = subprocess.Popen(
                    [*command, "--temp-dir", temp, *words], env=env, stdout=log, stderr=log
                )
            stack.callback(_ended, process)
            _wait_for_node(process, temp)
        yield made


def _remove(folder: Path) -> None:
    subprocess.run(["rm", "-r", folder], check=True)


def _ended(process: subprocess.Popen[bytes]) -> None:
    below = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGTERM)
    process.wait(30)
    assert survivors(below, 10.0) == []


def _wait_for_node(process: subprocess.Popen[bytes], temp: Path) -> None:
    log = temp.parent / f"{temp.name}.log"
    deadline_s = time.monotonic() + START_LIMIT_S
    while "Ray runtime started" not in log.read_text():
        assert process.poll() is None and time.monotonic() < deadline_s, log.read_text()
        time.sleep(0.1)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("nodes") / "model"
    return str(write_tiny_checkpoint(folder, "Qwen3ForCausalLM", num_key_value_heads=1))


def serving(model: str, *words: str, env: dict[str, str] | None = None) -> ServerProcess:
    usual = ("--port", "0", "--dtype", "float32", "--max-model-len", "64", "--skip-tokenizer-init")
    return ServerProcess(model, *usual, *words, env=env)


def answers(server: ServerProcess) -> list[Any]:
    """Return the tokens and logprobs of greedy and seeded answers."""
    found = []
    with server.wait_ready().client() as client:
        for number in range(4):
            body = {
                "prompt": list(range(3, 9 + 4 * number)), "max_tokens": 8, "ignore_eos": True,
                "temperature": number % 2, "seed": number, "logprobs": 1, "return_token_ids": True,
            }  # fmt: skip
            answer = client.post("/v1/completions", json=body)
            assert answer.status_code == 200, answer.text
            (choice,) = answer.json()["choices"]
            found.append((choice["token_ids"], choice["logprobs"]["token_logprobs"]))
    return found


@pytest.fixture(scope="module")
def wanted(model: str) -> list[Any]:
    with serving(model) as server:
        return answers(server)


def actors() -> list[psutil.Process]:
    """Return the nodes' processes that are ranks or engines."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or [""]
        if words[0].startswith("ray::") and "Actor" in words[0]:
            found.append(process)
    return found


def node_of(process: psutil.Process, nodes: Nodes) -> str:
    """Return the folder of the node that a process belongs to."""
    above = " ".join(word for one in process.parents() for word in one.cmdline())
    (name,) = [folder.name for folder in nodes.folders if f"{folder}/session" in above]
    return name


@pytest.mark.parametrize("words", [RANKS, ENGINES], ids=["ranks", "engines"])
def test_a_server_over_both_nodes_answers_as_one_rank(
    nodes: Nodes, model: str, wanted: list[Any], words: tuple[str, ...]
) -> None:
    with serving(model, *words, env=nodes.user) as server:
        for ours, theirs in zip(answers(server), wanted, strict=True):
            assert ours[0] == theirs[0]
            assert ours[1] == pytest.approx(theirs[1], abs=2e-3)
        found = actors()
        assert {node_of(one, nodes) for one in found} == {"head", "other"}
        below = [child for one in found for child in one.children(recursive=True)]
        server.process.terminate()
        assert server.wait() == 0
        assert survivors([*found, *below], 3.0) == []


def refusal(model: str, *words: str, env: dict[str, str]) -> str:
    with serving(model, *words, env=env) as server:
        assert server.wait(60.0) == 2
        return "\n".join(server.lines)


def test_who_does_not_show_the_token_is_told_what_to_set(nodes: Nodes, model: str) -> None:
    once = {"RAY_NUM_REDIS_GET_RETRIES": "1"}  # Ray would try for 20 seconds
    told = refusal(model, *ENGINES, env=nodes.address | once)
    assert "error: --data-parallel-backend: the Ray cluster at 127.0.0.1:" in told
    assert "lets in only who shows its token" in told and "RAY_AUTH_MODE=token" in told
    wrong = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}
    told = refusal(model, *RANKS, env=nodes.address | once | wrong)
    assert "error: --distributed-executor-backend: the Ray cluster at" in told
    assert "RAY_AUTH_TOKEN" in told


def test_ranks_run_under_nsys_where_it_is_and_otherwise_are_not_started(
    nodes: Nodes, model: str, wanted: list[Any]
) -> None:
    words = (*RANKS, "--ray-workers-use-nsight")
    told = refusal(model, *words, env=nodes.user)
    assert "error: --ray-workers-use-nsight: ranks cannot run under `nsys profile`" in told
    assert "fix: install Nsight Systems there" in told
    assert actors() == []
    program = nodes.programs / "nsys"
    program.write_text(NSYS)
    program.chmod(0o755)
    with serving(model, *words, env=nodes.user) as server:
        assert [one[0] for one in answers(server)] == [one[0] for one in wanted]
        found = actors()
        assert len(found) == 2
    ranks = [x for x in (nodes.programs / "calls").read_text().splitlines() if "_rank_%p" in x]
    assert len(ranks) == 2
    for options, folder in zip(sorted(ranks), nodes.folders, strict=True):
        assert options.startswith(" profile ") and "--stop-on-exit=true" in options
        assert f"-o {folder}/session" in options and "-t cuda,cudnn,cublas,nvtx" in options
    assert survivors(found, 5.0) == []

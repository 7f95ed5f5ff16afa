"""Ranks as Ray actors: they answer as one rank does, on several machines, and end with the engine.

Skipped where Ray is not installed; `make test-machines` installs it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from dovetail import LLM, SamplingParams
from dovetail.cli.main import main
from dovetail.errors import ConfigError, EngineDead
from dovetail.processes.process import child_environment
from dovetail_testing.tiny.models import write_tiny_checkpoint
from support import ranks_answers
from support.inside import core_of, executor_of

ray = pytest.importorskip("ray", reason="ray is not installed; make test-machines installs it")
# Ray's own processes and sockets are not closed in order when a cluster ends.
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.machines,
    pytest.mark.filterwarnings("ignore"),
]

RAY = {"tensor_parallel_size": 2, "distributed_executor_backend": "ray"}
START = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("ray") / "model"
    return str(write_tiny_checkpoint(folder, "Qwen3ForCausalLM", num_key_value_heads=1))


@pytest.fixture(scope="module")
def wanted(model: str) -> list[dict[str, Any]]:
    return ranks_answers.answers({"model": model})


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return a Ray cluster of two nodes on this machine, with one CPU each."""
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        made.add_node(num_cpus=1)
        made.wait_for_nodes()
        monkeypatch.setenv("RAY_ADDRESS", made.address)
        yield made
    finally:
        ray.shutdown()
        made.shutdown()


def assert_same(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> None:
    """Assert equal tokens, and logprobs equal up to the order of sums."""
    for mine, other in zip(ours[:3], theirs[:3], strict=True):
        assert (mine["ids"], mine["error"]) == (other["ids"], "None")
        for one, two in zip(mine["logprobs"], other["logprobs"], strict=True):
            assert one == pytest.approx(two, abs=2e-3)


def links_of(llm: LLM) -> Any:
    """Return the executor's links to its ranks."""
    executor: Any = executor_of(core_of(llm))
    return executor._links


def test_two_machines_answer_as_one_rank(cluster: Any, model: str, wanted: list[Any]) -> None:
    assert_same(ranks_answers.answers({"model": model, **RAY}), wanted)
    with LLM(model=model, **ranks_answers.ENGINE, **RAY) as llm:
        links = links_of(llm)
        assert len(set(links.nodes)) == 2
        pids = links.pids
        psutil.Process(pids[1]).kill()
        with pytest.raises(EngineDead, match=rf"rank 1 \(process {pids[1]} on .*\) ended"):
            for _ in range(50):
                llm.generate([[5, 6, 7]], START, use_tqdm=False)
    _, left = psutil.wait_procs([psutil.Process(p) for p in pids if psutil.pid_exists(p)], 5)
    assert not left


def test_a_cluster_too_small_is_told_with_the_number_that_fits(cluster: Any, model: str) -> None:
    flags = {**RAY, "tensor_parallel_size": 4}
    with pytest.raises(ConfigError) as caught:
        LLM(model=model, **ranks_answers.ENGINE, **flags)
    assert "4 ranks need 1 of the Ray cluster's CPUs each, and it has 2 on 2" in str(caught.value)
    assert "--tensor-parallel-size 2" in caught.value.advice
    busy = {"executor": {"cpus": 1, "wait_s": 1.0}}

    @ray.remote(num_cpus=1)
    class Other:
        def here(self) -> bool:
            return True

    ray.init(address=cluster.address)
    other = Other.remote()
    assert ray.get(other.here.remote())
    with pytest.raises(ConfigError, match="could not place 2 ranks of 1 CPU within 1 s"):
        LLM(model=model, **ranks_answers.ENGINE, **RAY, plugin_options=busy)
    ray.kill(other)


def test_a_cluster_started_here_ends_with_the_engine_also_when_killed(
    model: str, wanted: list[Any]
) -> None:
    script = (
        "import sys, time; from support import ranks_answers as r; from dovetail import LLM\n"
        f"flags = {{'model': {model!r}, **{RAY!r}, **r.ENGINE}}\n"
        "llm = LLM(**flags)\nprint('loaded', flush=True)\ntime.sleep(100)"
    )
    environment = {k: v for k, v in child_environment().items() if k != "RAY_ADDRESS"}
    with subprocess.Popen(
        [sys.executable, "-c", script], env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        assert any("loaded" in line for line in lines)
        below = psutil.Process(process.pid).children(recursive=True)
        assert sum("RankActor" in " ".join(child.cmdline()) for child in below) == 2
        process.send_signal(signal.SIGKILL)
        _, left = psutil.wait_procs(below, timeout=4)
        assert not left, [" ".join(child.cmdline()) for child in left]


def test_the_kit_passes_where_the_cluster_has_room(cluster: Any, tmp_path: Path) -> None:
    """Some clauses have several executors at once, so that two CPUs are too few."""
    cluster.add_node(num_cpus=6)
    cluster.wait_for_nodes()
    command = [sys.executable, "-m", "dovetail", "plugins", "check", "executor:ray"]
    done = subprocess.run(
        command, env=child_environment(), cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_cluster_that_is_not_there(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(ConfigError, match=r"the Ray cluster at 127\.0\.0\.1:1 cannot be reached"):
        LLM(model=model, **ranks_answers.ENGINE, **RAY)
    assert os.environ["RAY_ADDRESS"]
    monkeypatch.delenv("RAY_ADDRESS")
    words = ["serve", "--ray-workers-use-nsight", "--distributed-executor-backend", "mp"]
    assert main(words) == 2
    assert "--ray-workers-use-nsight" in capsys.readouterr().err

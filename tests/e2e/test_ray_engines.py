"""Engines that Ray starts on two nodes, behind an LLM and behind a server: they answer as one, one
that dies takes no other with it, and none stays.

Skipped where Ray is not installed; `make test-machines` installs it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

import httpx
import psutil
import pytest

from dovetail import LLM, SamplingParams
from dovetail.errors import ConfigError
from support.orphans import survivors
from support.server_process import ServerProcess

ray = pytest.importorskip("ray", reason="ray is not installed; make test-machines installs it")
# Ray's own processes and sockets are not closed in order when a cluster ends.
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.machines,
    pytest.mark.filterwarnings("ignore"),
]
ENGINES = {"data_parallel_size": 2, "data_parallel_backend": "ray"}
PROMPT = "The capital of France is"
GREEDY = SamplingParams(temperature=0, max_tokens=6)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Return a Ray cluster of two nodes on this machine, with one CPU each."""
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    with pytest.MonkeyPatch.context() as patch:
        try:
            made.add_node(num_cpus=1)
            made.wait_for_nodes()
            patch.setenv("RAY_ADDRESS", made.address)
            yield made
        finally:
            ray.shutdown()
            made.shutdown()


def actors() -> list[psutil.Process]:
    """Return the processes of this machine that are actors with an engine."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if any("EngineActor" in word for word in process.info["cmdline"] or ()):
            found.append(process)
    return found


def test_an_llm_has_engines_on_two_machines_and_leaves_none(cluster: Any) -> None:
    with LLM(**ENGINES) as llm:
        results = llm.generate([PROMPT] * 6, GREEDY, use_tqdm=False)
        assert {result.outputs[0].text for result in results} == {results[0].outputs[0].text}
        assert "Paris" in results[0].outputs[0].text
        assert len({actor.ppid() for actor in actors()}) == 2  # each node's own agent started one
        below = [child for actor in actors() for child in actor.children(recursive=True)]
        assert len(below) >= 2
    assert survivors([*actors(), *below], 3.0) == []


def test_a_served_engine_that_dies_takes_no_other_with_it(cluster: Any) -> None:
    flags = ("--port", "0", "-dp", "2", "-dpb", "ray", "--api-server-count", "2")
    with ServerProcess(*flags, env={"RAY_ADDRESS": os.environ["RAY_ADDRESS"]}) as server:
        with server.wait_ready().client() as client:
            body = {"prompt": PROMPT, "max_tokens": 6, "temperature": 0}
            texts = {_text(client, body) for _ in range(6)}
            assert len(texts) == 1 and "Paris" in texts.pop()
            below = [child for actor in actors() for child in actor.children(recursive=True)]
            victim = actors()[0]
            own = victim.children(recursive=True)
            victim.kill()
            deadline_s = time.monotonic() + 2
            while (told := client.get("/health").json())["status"] != "degraded":
                assert time.monotonic() < deadline_s
            assert sorted(one["state"] for one in told["engines"]) == ["dead", "up"]
            assert survivors(own, 2.0) == []
            assert "Paris" in _text(client, body)
        server.process.terminate()
        assert server.wait() == 0
        assert survivors([*below, *actors()], 3.0) == []


def _text(client: httpx.Client, body: dict[str, Any]) -> str:
    answer = client.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    text: str = answer.json()["choices"][0]["text"]
    return text


def test_what_does_not_fit_is_told_with_what_would(cluster: Any) -> None:
    with pytest.raises(ConfigError, match="3 engines need 1 of the Ray cluster's CPUs each") as e:
        LLM(**ENGINES | {"data_parallel_size": 3})
    assert "--data-parallel-size 2" in e.value.advice
    with pytest.raises(ConfigError, match=r"engine [01] on [\d.]+: .*lists of CPUs"):
        LLM(**ENGINES, cpu_cores="0|1|0")
    assert actors() == []

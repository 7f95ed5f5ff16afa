"""An idle server sleeps: events wake its processes, not timers that look whether there is one."""

from __future__ import annotations

import json
import time
from pathlib import Path

import psutil
import pytest

from dovetail_testing.tiny.models import write_tiny_checkpoint, write_tiny_tokenizer
from support.kv_engines import free_port
from support.server_process import ServerProcess
from support.wake_ups import counts_wake_ups, wake_ups_a_second

pytestmark = [pytest.mark.e2e, pytest.mark.slow, counts_wake_ups]

FEW = ("--max-model-len", "64", "--dtype", "float32", "--kv-cache-memory-bytes", "1M")
ASKED = {"prompt": "The", "max_tokens": 4}
FIRST_S = 2.0
"""After a request the engine checks its books once; connections close."""


def idle_wake_ups(server: ServerProcess) -> dict[str, float]:
    """Return how often a second each process of a server wakes up, by what it runs."""
    time.sleep(FIRST_S)
    processes = [psutil.Process(server.process.pid), *server.descendants()]
    return {f"{p.pid} {p.cmdline()[-1]}": wake_ups_a_second([p.pid], 3.0) for p in processes}


@pytest.mark.cold_start
def test_a_server_its_engine_and_what_compiles_constraints() -> None:
    with ServerProcess("--port", "0") as server:
        server.wait_ready()
        with server.client() as client:
            assert client.post("/v1/completions", json=ASKED).status_code == 200
        counted = idle_wake_ups(server)
        own, *below = counted.values()
        assert own <= 6, counted  # a ping, its answer and a look at the steps a second
        assert max(below) <= 5, counted
        assert len(below) >= 2, counted


def test_several_api_processes_and_their_parent() -> None:
    with ServerProcess("--port", "0", "--api-server-count", "2") as server:
        server.wait_ready()
        with server.client() as client:
            assert client.post("/v1/completions", json=ASKED).status_code == 200
        counted = idle_wake_ups(server)
        # The engine is pinged by each process, and each child says that it lives.
        assert max(counted.values()) <= 10, counted


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    folder = write_tiny_checkpoint(tmp_path / "tiny", "LlamaForCausalLM")
    write_tiny_tokenizer(folder)
    return folder


def test_two_ranks_that_exchange_blocks(tiny: Path) -> None:
    transfer = {"kv_connector": "p2p", "kv_port": free_port(), "kv_role": "kv_both"}
    flags = ("--tensor-parallel-size", "2", "--kv-transfer-config", json.dumps(transfer))
    with ServerProcess(str(tiny), "--port", "0", *FEW, *flags) as server:
        server.wait_ready()
        with server.client() as client:
            assert client.post("/v1/completions", json=ASKED).status_code == 200
        counted = idle_wake_ups(server)
        assert max(counted.values()) <= 6, counted


def test_several_models_and_a_route(tiny: Path, tmp_path: Path) -> None:
    file = tmp_path / "models.yaml"
    file.write_text(json.dumps({"models": [{"model": str(tiny), "served_model_name": ["tiny"]}]}))
    with ServerProcess("--models", str(file), "--port", "0", *FEW) as server:
        url = server.wait_ready().url
        with ServerProcess(
            "--port", "0", "--prefill", url, "--decode", url, command="route"
        ) as route:
            route.wait_ready()
            with route.client() as client:
                assert client.get("/v1/models").status_code == 200
            counted = idle_wake_ups(server) | idle_wake_ups(route)
        assert max(counted.values()) <= 6, counted

"""One server set up by variables alone, as containers are: each has its effect; then it dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from dovetail.errors import ConfigError
from dovetail.observability.logging import configure
from support.server_process import ServerProcess

pytestmark = pytest.mark.e2e

PREFIX = "[100% ours] "
KEY = {"authorization": "Bearer hunter2"}
PROMPT = "The capital of France is Paris. The capital of Italy is Rome. The capital of Spain is"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    env = {
        "DOVETAIL_PORT": "0",
        "DOVETAIL_MAX_ENGINE_RESTARTS": "0",
        "DOVETAIL_ENABLE_PROMPT_TOKENS_DETAILS": "true",
        "DOVETAIL_SERVED_MODEL_NAME": "first,second",
        "DOVETAIL_DISABLE_LOG_STAT": "1",
        "VLLM_API_KEY": "hunter2",
        "VLLM_CPU_KVCACHE_SPACE": "0.0625",
        "VLLM_CPU_OMP_THREADS_BIND": str(max(os.sched_getaffinity(0))),
        "VLLM_KEEP_ALIVE_ON_ENGINE_DEATH": "1",
        "VLLM_LOGGING_LEVEL": "DEBUG",
        "VLLM_LOGGING_PREFIX": PREFIX,
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_PORT": "tcp://10.0.0.1:8000",
        "VLLM_RPC_BASE_PATH": str(tmp_path_factory.mktemp("sockets")),
        "VLLM_SERVER_DEV_MODE": "1",
    }
    with ServerProcess(env=env) as started:
        yield started.wait_ready()


def cached_tokens(server: ServerProcess) -> int:
    body = {"prompt": PROMPT, "max_tokens": 2, "temperature": 0}
    with server.client(headers=KEY) as client:
        usage = client.post("/v1/completions", json=body).raise_for_status().json()["usage"]
    return int(usage["prompt_tokens_details"]["cached_tokens"])


def test_the_start_tells_what_was_translated_and_what_nobody_knows(server: ServerProcess) -> None:
    told = [line for line in server.lines if line.startswith("dovetail: ")]
    assert "dovetail: note: VLLM_API_KEY is --api-key, or DOVETAIL_API_KEY." in told
    assert any("VLLM_NO_USAGE_STATS changes nothing: dovetail sends no" in line for line in told)
    (warning,) = [line for line in told if line.startswith("dovetail: warning: ")]
    assert warning.endswith("did you mean DOVETAIL_DISABLE_LOG_STATS?")
    assert not any("VLLM_PORT" in line for line in told)


def test_every_process_logs_with_the_prefix_and_level(server: ServerProcess) -> None:
    logged = [line for line in server.lines if not line.startswith("dovetail: ")]
    ours = [line for line in logged if " dovetail" in line]
    assert len(ours) > 5
    assert all(line.startswith(PREFIX) for line in ours)
    pids = {line.removeprefix(PREFIX).split()[2] for line in ours}
    assert {str(server.process.pid), str(server.engine().pid)} <= pids


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux keeps processes to processors")
def test_the_engine_runs_where_it_was_told_to(server: ServerProcess) -> None:
    wanted = [max(os.sched_getaffinity(0))]
    assert server.engine().cpu_affinity() == wanted
    workers = [thread.id for thread in server.engine().threads()]
    on_it = [tid for tid in workers if os.sched_getaffinity(tid) == set(wanted)]
    assert len(on_it) >= 1
    assert psutil.Process(server.process.pid).cpu_affinity() == sorted(os.sched_getaffinity(0))


def test_a_reset_makes_the_next_prompt_cold(server: ServerProcess) -> None:
    cached_tokens(server)
    assert cached_tokens(server) >= 16
    with server.client(headers=KEY) as client:
        assert client.post("/reset_prefix_cache").status_code == 200
    assert cached_tokens(server) == 0
    assert cached_tokens(server) >= 16


def test_server_info_tells_what_came_of_the_variables(server: ServerProcess) -> None:
    with server.client() as client:
        assert client.get("/server_info").status_code == 401
        answer = client.get("/server_info", headers=KEY)
    found = answer.json()
    assert found["engine"]["cache"]["memory_bytes"] == 2**26
    assert found["engine"]["served_names"] == ["first", "second"]
    folder = Path(found["engine"]["socket_dir"])
    assert list(folder.glob("dovetail-*/engine.sock"))
    assert "hunter2" not in answer.text


def test_the_server_outlives_its_engine_and_says_so(server: ServerProcess) -> None:
    """As keep_alive_on_engine_death asks."""
    server.engine().kill()
    deadline_s = time.monotonic() + 10
    with server.client(headers=KEY) as client:
        while client.get("/health").status_code == 200 and time.monotonic() < deadline_s:
            time.sleep(0.05)
        time.sleep(2.5)  # longer than a server without the flag goes on
        assert client.get("/health").status_code == 503
        answer = client.post("/v1/completions", json={"prompt": "x"})
        assert answer.status_code == 503
        assert client.post("/reset_prefix_cache").status_code == 503
        assert client.get("/live").status_code == 200
    server.process.send_signal(signal.SIGTERM)
    assert server.wait() == 1
    assert server.orphans(5.0) == []
    with pytest.raises(httpx.TransportError):
        httpx.get(f"{server.url}/live")


def test_a_log_that_others_set_up() -> None:
    """--no-configure-logging leaves Python's own default: no line below a warning."""
    for words in ((), ("--no-configure-logging",)):
        done = subprocess.run(
            [sys.executable, "-m", "dovetail", "serve", "./no/such/folder", *words],
            capture_output=True,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            check=False,
        )
        assert done.returncode == 2
        assert ("imports took" in done.stderr) == (not words)
        assert (len(done.stderr.splitlines()) == 2) == bool(words)


def test_a_file_that_sets_the_log_up_needs_it_to_be_set_up() -> None:
    with pytest.raises(ConfigError, match="--no-configure-logging"):
        configure("info", config={"version": 1}, is_wanted=False)
    configure("info", is_wanted=False)

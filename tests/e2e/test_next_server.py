"""A gateway has the process of the next model's server before the model is named."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from dovetail_testing.tiny.models import write_tiny_checkpoint, write_tiny_tokenizer
from support.orphans import is_running
from support.server_process import ServerProcess

pytestmark = pytest.mark.e2e
SERVER = "dovetail_plugins.commands._server_child"
ENGINE = "dovetail.engine.process"
LIMIT_S = 60.0


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """Return the list of the models a, b and c, of which one is loaded at a time; c has two API
    processes."""
    rows = []
    for name in "abc":
        write_tiny_checkpoint(tmp_path / name, "LlamaForCausalLM")
        write_tiny_tokenizer(tmp_path / name)
        own = {"api_server_count": 2} if name == "c" else {}
        rows.append({"model": str(tmp_path / name), "served_model_name": [name], **own})
    file = tmp_path / "models.yaml"
    file.write_text(json.dumps({"models": [row | {"load": "at_first_use"} for row in rows]}))
    return file


@pytest.fixture
def server(models: Path) -> Iterator[ServerProcess]:
    flags = ("--port", "0", "--kv-cache-memory-bytes", "1M", "--load-wait-s", "120")
    with ServerProcess("--models", str(models), "--max-loaded-models", "1", *flags) as started:
        yield started.wait_ready()


def running(server: ServerProcess, module: str) -> set[psutil.Process]:
    """Return the running processes of a module below the gateway."""
    found = set()
    for child in psutil.Process(server.process.pid).children(recursive=True):
        try:
            if module in child.cmdline():
                found.add(child)
        except psutil.Error:  # it has just ended
            continue
    return found


def waiting(server: ServerProcess, count: int = 1) -> set[psutil.Process]:
    """Return the model servers once there are `count`."""
    until_s = time.monotonic() + LIMIT_S
    while len(found := running(server, SERVER)) != count:
        assert time.monotonic() < until_s, found
        time.sleep(0.05)
    return found


def complete(server: ServerProcess, model: str) -> list[dict[str, object]]:
    body = {"model": model, "prompt": [5, 6, 7], "max_tokens": 4, "temperature": 0}
    with server.client() as client:
        answer = client.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    choices: list[dict[str, object]] = answer.json()["choices"]
    return choices


def test_the_process_that_waited_serves(server: ServerProcess) -> None:
    answers: dict[str, list[dict[str, object]]] = {}
    ahead = waiting(server)
    for name in "aba":
        answer = complete(server, name)
        assert answers.setdefault(name, answer) == answer
        assert ahead <= running(server, SERVER)
        ahead = waiting(server, 2) - ahead


def test_a_server_of_several_processes_has_a_process_of_its_own(server: ServerProcess) -> None:
    (ahead,) = waiting(server)
    complete(server, "c")
    assert not is_running(ahead)
    with server.client() as client:
        assert 'model_name="c"' in client.get("/metrics").text


def test_nothing_waits_after_the_gateway(server: ServerProcess) -> None:
    (ahead,) = waiting(server)
    engines = running(server, ENGINE)
    server.process.terminate()
    server.process.wait(LIMIT_S)
    until_s = time.monotonic() + LIMIT_S
    while any(is_running(one) for one in (ahead, *engines)):
        assert time.monotonic() < until_s
        time.sleep(0.05)

"""Two models behind one address, as whole processes: they answer, die, come back and end."""

from __future__ import annotations

import json
import signal
import ssl
import time
from collections.abc import Iterator
from typing import Any

import httpx
import psutil
import pytest

from dovetail.config.checkpoint.sources.model_path import DEMO_PATH
from dovetail_testing.tiny.models import write_tiny_checkpoint, write_tiny_tokenizer
from support.certificates import Certificates, make_certificates
from support.server_process import ServerProcess

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def server(
    tmp_path_factory: pytest.TempPathFactory, certificates: Certificates
) -> Iterator[ServerProcess]:
    """Return a server, with TLS, of the models a, loaded at start, and b and c, loaded at first
    use; c has two API processes and sleeps when it is idle."""
    folder = tmp_path_factory.mktemp("models")
    for name, layers in (("a", 1), ("b", 2)):
        write_tiny_checkpoint(folder / name, "LlamaForCausalLM", num_hidden_layers=layers)
        write_tiny_tokenizer(folder / name)
    second = {"model": str(folder / "b"), "served_model_name": ["b"], "load": "at_first_use"}
    third = {"api_server_count": 2, "idle_after_s": 0.3, "on_idle": 2}
    rows = [
        {"model": str(folder / "a"), "served_model_name": ["a"]},
        second,
        second | third | {"served_model_name": ["c"]},
    ]
    file = folder / "models.yaml"
    file.write_text(json.dumps({"models": rows}))
    flags = ("--port", "0", "--kv-cache-memory-bytes", "1M", "--load-wait-s", "60")
    tls = ("--ssl-certfile", certificates.cert("first"), "--ssl-keyfile", certificates.key("first"))
    with ServerProcess("--models", str(file), *flags, *tls) as started:
        yield started.wait_ready()


@pytest.fixture
def client(server: ServerProcess, certificates: Certificates) -> Iterator[httpx.Client]:
    trusted = ssl.create_default_context(cafile=certificates.cert("authority"))
    with server.client(timeout=60, verify=trusted) as opened:
        yield opened


def complete(client: httpx.Client, model: str, **fields: Any) -> httpx.Response:
    body = {"model": model, "prompt": [5, 6, 7], "max_tokens": 4, "temperature": 0} | fields
    return client.post("/v1/completions", json=body)


def states(client: httpx.Client) -> dict[str, str]:
    return {card["id"]: card["state"] for card in client.get("/v1/models").json()["data"]}


def model_servers(server: ServerProcess) -> list[psutil.Process]:
    """Return the models' own servers, in the order of their start."""
    found = [
        c for c in server.descendants() if "dovetail_plugins.commands._server_child" in c.cmdline()
    ]
    return sorted(found, key=lambda child: child.create_time())


def wait_for(client: httpx.Client, model: str, state: str) -> None:
    until_s = time.monotonic() + 10
    while states(client)[model] != state:
        assert time.monotonic() < until_s
        time.sleep(0.02)


def test_two_models_answer_and_the_death_of_one_is_its_own(
    server: ServerProcess, client: httpx.Client
) -> None:
    assert states(client) == {"a": "loaded", "b": "unloaded", "c": "unloaded"}
    first = complete(client, "a").json()
    other = complete(client, "b").json()
    assert (first["model"], other["model"]) == ("a", "b")
    assert first["usage"]["completion_tokens"] == 4
    events = complete(client, "b", stream=True).text
    assert events.rstrip().endswith("data: [DONE]")
    metrics = client.get("/metrics").text
    assert 'dovetail:num_requests_running{engine="0",model_name="b"}' in metrics
    model_servers(server)[1].kill()
    assert complete(client, "a").json()["choices"] == first["choices"]
    wait_for(client, "b", "unloaded")
    assert complete(client, "b").json()["choices"] == other["choices"]


def test_an_idle_model_of_two_processes_sleeps_and_wakes_up(client: httpx.Client) -> None:
    """Level 2 drops the weights, which are read again."""
    first = complete(client, "c").json()["choices"]
    assert first == complete(client, "b").json()["choices"]  # the same checkpoint
    for _ in range(2):
        wait_for(client, "c", "asleep")
        assert complete(client, "c").json()["choices"] == first
    assert 'loads_total{how="woken",model_name="c"} 2.0' in client.get("/metrics").text


def test_models_end_with_the_address(server: ServerProcess) -> None:
    assert len(model_servers(server)) == 3
    server.process.send_signal(signal.SIGTERM)
    assert server.wait() == 0
    assert server.orphans(5.0) == []


def test_a_killed_gateway_leaves_nothing() -> None:
    names = ("--served-model-name", "a", "b")
    with ServerProcess(*[str(DEMO_PATH)] * 2, *names, "--port", "0") as started:
        while not model_servers(started):
            time.sleep(0.02)
        started.process.kill()
        assert started.orphans(10.0) == []

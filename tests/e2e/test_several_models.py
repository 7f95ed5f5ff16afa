"""Two models behind one address, as whole processes: they answer, die, come back and end."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from typing import Any

import httpx
import psutil
import pytest

from dovetail.config.checkpoint.model_path import DEMO_PATH
from dovetail.testing.tiny_models import write_tiny_checkpoint, write_tiny_tokenizer
from support.server_process import ServerProcess

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Return a server of the models a, loaded at start, and b, loaded at first use."""
    folder = tmp_path_factory.mktemp("models")
    for name, layers in (("a", 1), ("b", 2)):
        write_tiny_checkpoint(folder / name, "LlamaForCausalLM", num_hidden_layers=layers)
        write_tiny_tokenizer(folder / name)
    second = {"model": str(folder / "b"), "served_model_name": ["b"], "load": "at_first_use"}
    rows = [{"model": str(folder / "a"), "served_model_name": ["a"]}, second]
    file = folder / "models.yaml"
    file.write_text(json.dumps({"models": rows}))
    flags = ("--port", "0", "--kv-cache-memory-bytes", "1M", "--load-wait-s", "60")
    with ServerProcess("--models", str(file), *flags) as started:
        yield started.wait_ready()


def complete(client: httpx.Client, model: str, **fields: Any) -> httpx.Response:
    body = {"model": model, "prompt": [5, 6, 7], "max_tokens": 4, "temperature": 0} | fields
    return client.post("/v1/completions", json=body)


def states(client: httpx.Client) -> dict[str, str]:
    return {card["id"]: card["state"] for card in client.get("/v1/models").json()["data"]}


def model_servers(server: ServerProcess) -> list[psutil.Process]:
    """Return the models' own servers, in the order of their start."""
    found = [c for c in server.descendants() if "dovetail.cli.server_child" in c.cmdline()]
    return sorted(found, key=lambda child: child.create_time())


def test_two_models_answer_and_the_death_of_one_is_its_own(server: ServerProcess) -> None:
    with server.client(timeout=60) as client:
        assert states(client) == {"a": "loaded", "b": "unloaded"}
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
        until_s = time.monotonic() + 5
        while states(client)["b"] != "unloaded" and time.monotonic() < until_s:
            time.sleep(0.02)
        again = complete(client, "b").json()
        assert again["choices"] == other["choices"]


def test_models_end_with_the_address(server: ServerProcess) -> None:
    assert len(model_servers(server)) == 2
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

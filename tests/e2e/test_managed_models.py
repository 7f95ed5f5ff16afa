"""The `ollama` client against `dovetail serve --models any`: pull, show, create, copy, delete."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from support.any_models import demo_files, demo_gguf, digest_of
from support.fake_hub import LocalHub, Repo
from support.fake_registry import FakeRegistry
from support.server_process import ServerProcess

ollama = pytest.importorskip("ollama")
pytest.importorskip("huggingface_hub")
pytestmark = pytest.mark.e2e
NAME = "org/model"
QUESTION = [{"role": "user", "content": "Hello"}]


@dataclasses.dataclass
class Place:
    """A server, its client, its hub, and the folder of its stores."""

    client: Any
    hub: LocalHub
    registry: FakeRegistry
    folder: Path


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("stores")
    with (
        LocalHub(org__model=Repo(demo_files()), org__gated=Repo({}, is_gated=True)) as hub,
        FakeRegistry() as registry,
    ):
        env = {
            "HOME": str(folder / "home"),
            "HF_HOME": str(folder / "hf"),
            "HF_HUB_CACHE": str(folder / "hub"),
            "OLLAMA_MODELS": str(folder / "ollama"),
            "XDG_DATA_HOME": str(folder / "data"),
            "HF_ENDPOINT": hub.url,
            "OLLAMA_REGISTRY": registry.url,
            "HF_HUB_OFFLINE": "0",
            "HF_HUB_DISABLE_XET": "1",
        }
        flags = ("--models", "any", "--port", "0", "--kv-cache-memory-bytes", "8M")
        with ServerProcess(*flags, env=env) as server:
            server.wait_ready()
            yield Place(ollama.Client(host=server.url), hub, registry, folder)


def names(client: Any) -> set[str]:
    return {model.model for model in client.list().models}


def test_the_life_of_models(place: Place) -> None:
    client = place.client
    assert names(client) == set()
    with pytest.raises(ollama.ResponseError, match="not served here") as refused:
        client.chat(NAME, QUESTION)
    assert refused.value.status_code == 404

    progress = list(client.pull(NAME, stream=True))
    assert progress[-1].status == "success"
    assert any(one.total and one.completed == one.total for one in progress)
    assert names(client) == {NAME}
    (row,) = client.list().models
    assert row.size > 4_000_000

    before = client.show(NAME)  # of its files: it is not loaded
    assert client.ps().models == []
    assert before.details.format == "safetensors"
    assert "completion" in before.capabilities
    assert "{%" in before.template

    client.create(
        "strict", from_=NAME, system="Answer briefly.", parameters={"temperature": 0, "seed": 3}
    )
    assert names(client) == {NAME, "strict:latest"}
    shown = client.show("strict")
    assert "temperature 0" in shown.parameters
    assert 'SYSTEM "Answer briefly."' in shown.modelfile
    answer = client.chat("strict", QUESTION, options={"num_predict": 8}, keep_alive="5m")
    told = [{"role": "system", "content": "Answer briefly."}, *QUESTION]
    same = client.chat(NAME, told, options={"num_predict": 8, "temperature": 0, "seed": 3})
    assert answer.message.content == same.message.content
    assert answer.prompt_eval_count == same.prompt_eval_count
    loaded = {one.model: one for one in client.ps().models}
    assert set(loaded) == {"strict:latest", NAME}
    left_s = (loaded["strict:latest"].expires_at - datetime.now(UTC)).total_seconds()
    assert 200 < left_s <= 300
    after = client.show(NAME)  # of its server, which says the same
    assert after.details.family == before.details.family
    assert after.details.parameter_size == before.details.parameter_size
    assert before.capabilities == after.capabilities == ["completion", "tools", "thinking"]
    assert after.template == before.template
    assert after.modelinfo.items() >= before.modelinfo.items()

    client.copy("strict", "mine:v1")
    assert client.show("mine:v1").parameters == shown.parameters
    client.delete("strict")
    assert names(client) == {NAME, "mine:v1"}
    assert {one.model for one in client.ps().models} == {NAME}
    assert client.chat("mine:v1", QUESTION, options={"num_predict": 8}).message.content == (
        answer.message.content
    )
    with pytest.raises(ollama.ResponseError, match="not served here"):
        client.chat("strict", QUESTION)


def test_a_model_of_an_uploaded_file(place: Place) -> None:
    client, content = place.client, demo_gguf(place.folder / "made")
    path = place.folder / "made" / "demo.gguf"
    assert client.create_blob(path) == digest_of(content)
    client.create("own", files={"demo.gguf": digest_of(content)}, template="{{ .Prompt }}")
    assert client.show("own").template == "{{ .Prompt }}"
    said = client.generate("own", "Hello", options={"num_predict": 4, "temperature": 0})
    assert said.eval_count == 4
    assert said.prompt_eval_count < 8  # the template adds nothing
    client.delete("own")
    assert list((place.folder / "data" / "dovetail" / "models" / "blobs").iterdir()) == []


def test_a_model_of_ollamas_registry(place: Place) -> None:
    client = place.client
    place.registry.add("library/tiny:1b", ("model", demo_gguf(place.folder / "tiny")))
    assert client.pull("tiny:1b").status == "success"
    assert "tiny:1b" in names(client)
    said = client.chat("tiny:1b", QUESTION, options={"num_predict": 4, "temperature": 0})
    assert said.eval_count == 4
    client.delete("tiny:1b")
    assert "tiny:1b" not in names(client)
    assert list((place.folder / "ollama" / "blobs").iterdir()) == []


def test_what_is_refused(place: Place) -> None:
    client = place.client
    for call, said in (
        (lambda: client.push("x"), "does not send models"),
        (lambda: client.pull("llama 3.2"), "is not a name of the hub or of Ollama's registry"),
        (lambda: client.pull("org/gated"), "gated"),
        (lambda: client.pull("org/nothing"), "did not give it"),
        (lambda: client.create("x", from_="/etc/passwd"), "not a model of this machine"),
        (lambda: client.copy("nothing", "x"), "not a model of this machine"),
        (lambda: client.delete("nothing"), "not served here"),
        (lambda: client.show("nothing"), "not served here"),
    ):
        with pytest.raises(ollama.ResponseError, match=said):
            call()
    with pytest.raises(ollama.ResponseError, match="gated"):
        list(client.pull("org/gated", stream=True))

"""A plugin that makes prompts of other data: over HTTP and offline, against the plain endpoint."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from dovetail import LLM
from dovetail.errors import ConfigError, RequestError
from support.server_process import ServerProcess
from support.tiny_berts import write_bert

pytestmark = pytest.mark.e2e
PLUGIN = f"{Path(__file__).parents[1]}/conformance/wrong_io_processors.py:RightProcessor"
DATA: dict[str, Any] = {"columns": ["a"], "rows": [["cat"], ["the cat sat"]]}
TEXTS = ["a: cat", "a: the cat sat"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("bert") / "tiny-bert"
    write_bert(made)
    return made


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[httpx.Client]:
    flags = ("--port", "0", "--io-processor-plugin", PLUGIN)
    with ServerProcess(str(folder), *flags) as server, server.wait_ready().client() as made:
        yield made


def test_over_http_and_offline(client: httpx.Client, folder: Path) -> None:
    told = client.post("/pooling", json={"data": DATA}).json()
    plain = client.post("/v1/embeddings", json={"input": TEXTS}).json()
    mean = np.mean([one["embedding"] for one in plain["data"]], axis=0)
    assert told["data"]["rows"] == 2
    np.testing.assert_allclose(told["data"]["mean"], mean, atol=1e-6)
    assert told["usage"]["prompt_tokens"] == plain["usage"]["prompt_tokens"]
    with LLM(model=str(folder), io_processor_plugin=PLUGIN) as llm:
        (result,) = llm.encode({"data": DATA})
        np.testing.assert_allclose(result.outputs["mean"], mean, atol=1e-6)
        with pytest.raises(RequestError, match="columns"):
            llm.encode({"data": 3})


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"data": 3}, "data"),
        ({"data": {"columns": ["a"], "rows": [3]}}, "data"),  # the plugin falls over it
        ({"data": DATA, "input": "x"}, "input"),
        ({"data": DATA, "task": "classify"}, "task"),
    ],
)
def test_what_is_refused(client: httpx.Client, body: dict[str, Any], param: str) -> None:
    told = client.post("/pooling", json=body)
    assert told.status_code == 400, told.text
    assert told.json()["error"]["param"] == param
    assert client.post("/pooling", json={"data": DATA}).status_code == 200


def test_models_that_generate_have_none(tmp_path: Path) -> None:
    from dovetail_testing.tiny.models import write_tiny_checkpoint

    folder = write_tiny_checkpoint(tmp_path, "LlamaForCausalLM")
    with pytest.raises(ConfigError, match="generates"):
        LLM(model=str(folder), io_processor_plugin=PLUGIN)

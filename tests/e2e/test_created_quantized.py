"""/api/create with `quantize` writes the file that `dovetail quantize` writes, and serves it."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from dovetail.cli.main import main as command
from dovetail.config.checkpoint.sources.model_path import DEMO_PATH
from support.any_models import demo_files, digest_of
from support.server_process import ServerProcess

pytestmark = pytest.mark.e2e


@dataclass(frozen=True)
class Place:
    """A server of any models, and the folder of what it creates."""

    client: httpx.Client
    created: Path


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("quantized")
    (folder / "models").mkdir()
    (folder / "models" / "demo").symlink_to(DEMO_PATH)
    env = {"XDG_DATA_HOME": str(folder / "data"), "HF_HUB_CACHE": str(folder / "hub")}
    env |= {"HOME": str(folder / "home"), "OLLAMA_MODELS": str(folder / "ollama")}
    flags = ("--models", "any", "--model-dir", str(folder / "models"))
    with ServerProcess("--port", "0", *flags, "--kv-cache-memory-bytes", "8M", env=env) as server:
        server.wait_ready()
        with httpx.Client(base_url=server.url, timeout=120) as client:
            yield Place(client, folder / "data" / "dovetail" / "models")


def created(place: Place, **fields: Any) -> list[dict[str, Any]]:
    answer = place.client.post("/api/create", json=fields)
    assert answer.status_code == 200, answer.text
    return [json.loads(line) for line in answer.text.splitlines()]


@pytest.mark.parametrize("kind", ["q8_0", "q4_K_M"])
def test_a_quantized_model_is_what_the_command_writes(
    place: Place, kind: str, tmp_path: Path
) -> None:
    lines = created(place, model="small", **{"from": "demo"}, quantize=kind, system="Be brief.")
    texts = [line.get("status", line) for line in lines]
    assert texts[0] == f"quantizing model to {kind}"
    assert texts[-2:] == ["writing manifest", "success"]
    counts = [line["completed"] for line in lines if "completed" in line]
    assert counts == sorted(set(counts)) and counts[-1] == lines[len(counts)]["total"]
    method = f"gguf-{kind.lower()}"
    assert (
        command(["quantize", str(DEMO_PATH), "--method", method, "--out", str(tmp_path / "o")]) == 0
    )
    digest = hashlib.sha256((tmp_path / "o" / "model.gguf").read_bytes()).hexdigest()
    assert f"creating new layer sha256:{digest}" in texts
    body = {"model": "small", "prompt": "Hello", "stream": False, "options": {"num_predict": 4}}
    said = place.client.post("/api/generate", json=body)
    assert said.status_code == 200 and said.json()["eval_count"] > 0
    shown = place.client.post("/api/show", json={"model": "small"}).json()
    assert shown["details"]["format"] == "gguf" and shown["system"] == "Be brief."
    assert not list(place.created.glob("quantizing-*"))
    assert place.client.request("DELETE", "/api/delete", json={"model": "small"}).status_code == 200
    assert not list((place.created / "blobs").iterdir())


def test_uploaded_files_are_quantized_and_quantized_ones_refused(place: Place) -> None:
    digests = {}
    for file, content in demo_files().items():
        digests[file] = digest_of(content)
        place.client.post(f"/api/blobs/{digests[file]}", content=content)
    whole = place.client.post(
        "/api/create",
        json={"model": "own", "files": digests, "quantize": "Q8_0", "stream": False},
    )
    assert (whole.status_code, whole.json()) == (200, {"status": "success"})
    refused = created(place, model="again", **{"from": "own"}, quantize="q4_0")
    assert "quantized already" in refused[-1]["error"]
    whole = place.client.post(
        "/api/create", json={"model": "b", "from": "own", "quantize": "q4_0", "stream": False}
    )
    assert whole.status_code == 500 and "quantized already" in whole.json()["error"]
    unknown = place.client.post("/api/create", json={"model": "b", "from": "demo", "quantize": "x"})
    assert unknown.status_code == 400 and "q4_k_m" in unknown.json()["error"]
    names = {row["name"] for row in place.client.get("/api/tags").json()["models"]}
    assert names == {"demo", "own:latest"}
    place.client.request("DELETE", "/api/delete", json={"model": "own"})


def test_one_model_is_quantized_at_a_time_and_ends_with_its_client(place: Place) -> None:
    body = {"model": "left", "from": "demo", "quantize": "q8_0"}
    with place.client.stream("POST", "/api/create", json=body) as answer:
        assert next(answer.iter_lines())
    deadline_s = time.monotonic() + 30
    while list(place.created.glob("quantizing-*")):
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    with ThreadPoolExecutor(2) as pool:
        bodies = [{"model": f"m{n}", "from": "demo", "quantize": "q8_0"} for n in range(2)]
        for lines in pool.map(lambda one: created(place, **one), bodies):
            assert lines[-1] == {"status": "success"}
    names = {row["name"] for row in place.client.get("/api/tags").json()["models"]}
    assert names == {"demo", "m0:latest", "m1:latest"}

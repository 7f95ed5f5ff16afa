"""`dovetail pull` from a small server of the hub's API: what is fetched, and from where it goes on.

One process runs every case: huggingface_hub reads its variables when it is first imported.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.model_stores import COMMIT, FakeHub

pytest.importorskip("huggingface_hub")
FILES = {
    "README.md": b"# Model",
    "config.json": b"{}",
    "tokenizer.json": b"{}",
    "model.safetensors": bytes(range(256)) * 512,
    "consolidated.safetensors": b"the same again",
    "onnx/model.safetensors": b"another format",
    "m-Q4_K_M.gguf": b"GGUF four",
    "m-Q8_0-00001-of-00002.gguf": b"GGUF eight",
    "m-Q8_0-00002-of-00002.gguf": b"more",
}
CASES = [
    ["org/model:q8_0"],
    ["org/model"],
    ["org/model"],
    ["org/model:Q2_K"],
    ["org/other"],
    ["org/model", "--revision", "nope"],
]
CODE = """
import contextlib, io, json, sys
from huggingface_hub import constants
constants.DOWNLOAD_CHUNK_SIZE = 4096
from dovetail.cli.main import main
from dovetail.config.checkpoint.sources.model_path import find_model
told = []
for words in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(["pull", *words])
    told.append([status, out.getvalue(), err.getvalue()])
    told[-1].append(str(find_model(words[0])) if status == 0 else "")
print(json.dumps(told))
"""


def test_pull(tmp_path: Path) -> None:
    with FakeHub(FILES, broken="model.safetensors") as hub:
        told, asked = pulled(hub, tmp_path)
    snapshot = tmp_path / "hub" / "models--org--model" / "snapshots" / COMMIT
    eight, whole, again, other_quant, other_model, revision = told
    assert (eight[0], eight[3]) == (0, str(snapshot / "m-Q8_0-00001-of-00002.gguf"))
    assert f"--revision {COMMIT}" in eight[1]
    assert (whole[0], again[0], whole[3]) == (0, 0, str(snapshot))
    fetched = {p.relative_to(snapshot).as_posix() for p in snapshot.rglob("*") if p.is_file()}
    assert fetched == {
        "config.json", "tokenizer.json", "model.safetensors",
        "m-Q8_0-00001-of-00002.gguf", "m-Q8_0-00002-of-00002.gguf",
    }  # fmt: skip
    assert all((snapshot / name).read_bytes() == FILES[name] for name in fetched)
    parts = [a.split("bytes=")[1] for a in asked if "/model.safetensors bytes=" in a]
    assert parts and int(parts[0].rstrip("-")) > 0  # it went on where it broke off
    assert "model.safetensors" in whole[2] or "Fetching" in whole[2]  # progress is shown
    assert other_quant[0] == 2
    assert "has not one Q2_K, but Q4_K_M, Q8_0" in other_quant[2]
    for status, _, error, _ in (other_model, revision):
        assert status == 2
        assert "the hub did not give it" in error
        assert len(error.splitlines()) <= 2


def pulled(hub: FakeHub, tmp_path: Path) -> tuple[list[Any], list[str]]:
    """Return what each case came to, and what the hub was asked."""
    names = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_TOKEN")
    env = {name: value for name, value in os.environ.items() if name not in names}
    env |= {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path), "HOME": str(tmp_path / "home")}
    words = [sys.executable, "-c", CODE, json.dumps(CASES)]
    done = subprocess.run(words, capture_output=True, text=True, env=env, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), hub.asked


def test_a_hub_that_is_not_there_is_said_at_once(tmp_path: Path) -> None:
    with FakeHub({}) as hub:
        url = hub.url  # nobody listens there once it has ended
    env = {**os.environ, "HF_ENDPOINT": url, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": ""}
    words = [sys.executable, "-m", "dovetail", "pull", "org/model"]
    done = subprocess.run(words, capture_output=True, text=True, env=env, check=False, timeout=20)
    assert done.returncode == 2
    assert "the hub did not give it" in done.stderr
    assert "Traceback" not in done.stderr

"""`dovetail launch` with a server that it starts for the program."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.launching import environment, launch

ASKING = """
import json, os, sys, urllib.request
url = os.environ["OPENAI_API_BASE"]
request = urllib.request.Request(url + "/models")
request.add_header("Authorization", "Bearer " + os.environ["OPENAI_API_KEY"])
with urllib.request.urlopen(request) as answer:
    models = json.load(answer)["data"]
with open({note!r}, "w") as file:
    json.dump({{"url": url, "models": models, "words": sys.argv[1:]}}, file)
sys.exit(3)
"""
"""A program that notes what the server serves while the program runs."""


@pytest.mark.e2e
def test_a_server_starts_for_the_program_and_ends_after_it(tmp_path: Path) -> None:
    note, program = tmp_path / "note.json", tmp_path / "bin" / "aider"
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable}\n{ASKING.format(note=str(note))}")
    program.chmod(0o755)
    env = environment(tmp_path, PATH=f"{program.parent}:{os.environ['PATH']}")
    words = ("aider", "--max-model-len", "1024", "--api-key", "k", "--", "--message", "hi")
    done = launch(*words, env=env, folder=tmp_path)
    assert (done.returncode, done.stdout) == (3, ""), done.stderr
    assert "has a context of 1,024 tokens" in done.stderr
    seen: dict[str, Any] = json.loads(note.read_text())
    (model,) = seen["models"]
    assert model["max_model_len"] == 1024
    assert seen["words"][:2] == ["--model", f"openai/{model['id']}"]
    assert seen["words"][-2:] == ["--message", "hi"]
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{seen['url']}/models")
    assert list(tmp_path.glob("dovetail-run-*")) == []

"""`dovetail launch` with a server that it starts, and with the coding agents that are installed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tokenizers import Tokenizer

from dovetail.config.checkpoint.sources.model_path import DEMO_PATH
from dovetail_testing.models import write_replay_checkpoint
from support.server_process import ServerProcess

ANSWER = "Acorns grow on oaks."
LIMIT_S = 180.0
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
AGENTS = {
    "aider": ("--message", "say hi", "--yes-always", "--no-git", "--no-check-update"),
    "claude": ("-p", "say hi"),
    "codex": ("exec", "--skip-git-repo-check", "say hi"),
    "opencode": ("run", "say hi"),
}
"""Clients -> arguments for one answer without a terminal."""
OTHER_SERVER = '{"env": {"ANTHROPIC_BASE_URL": "http://127.0.0.1:9"}, "model": "other"}'
"""Settings of a user of Claude Code for another server."""
OTHERS = ("ANTHROPIC_", "CLAUDE", "CODEX_", "OPENAI_", "OPENCODE")
"""What variables of these programs begin with: those of the tests' own surroundings are removed."""


def environment(folder: Path, **more: str) -> dict[str, str]:
    """Return variables with a home and no servers of its own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(OTHERS)}
    for name in ("home", "run", "state"):
        (folder / name).mkdir(exist_ok=True)
    own = {
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "HOME": str(folder / "home"),
        "XDG_RUNTIME_DIR": str(folder / "run"),
        "XDG_STATE_HOME": str(folder / "state"),
        "TMPDIR": str(folder),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    return kept | own | more


def launch(*words: str, env: dict[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dovetail", "launch", *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        env=env,
        cwd=folder,
    )


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


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, with_test_models: None) -> Iterator[str]:
    """Serve a model that gives one answer to everything, with room for an agent's prompt."""
    tokenizer = Tokenizer.from_file(str(DEMO_PATH / "tokenizer.json"))
    tokens = tokenizer.encode(ANSWER, add_special_tokens=False).ids
    model = write_replay_checkpoint(
        tmp_path_factory.mktemp("replay"),
        tokenizer_from=DEMO_PATH,
        scripts=[{"tokens": tokens}],
        max_position_tokens=131_072,
    )
    with ServerProcess(str(model), "--port", "0", "--served-model-name", "oak") as running:
        yield running.wait_ready().url


@pytest.mark.clients
@pytest.mark.parametrize("name", AGENTS)
def test_an_agent_answers(tmp_path: Path, request: pytest.FixtureRequest, name: str) -> None:
    """The program shows the answer of the model."""
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
    url = request.getfixturevalue("server")
    work = tmp_path / "work"
    work.mkdir()
    env = environment(tmp_path)
    (tmp_path / "home" / ".claude").mkdir()
    (tmp_path / "home" / ".claude" / "settings.json").write_text(OTHER_SERVER)
    done = launch(name, "--url", url, "--", *AGENTS[name], env=env, folder=work)
    assert done.returncode == 0, done.stdout + done.stderr
    assert ANSWER in done.stdout, done.stdout + done.stderr

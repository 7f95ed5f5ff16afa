"""`dovetail launch` with a program that notes how it was started, and a server of two models."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import threading
import tomllib
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from dovetail.cli.main import main
from dovetail.server.launch import records
from dovetail_plugins.commands._launched import base_of

NOTING = """
import json, os, sys
with open({note!r}, "w") as file:
    json.dump({{"env": dict(os.environ), "words": sys.argv[1:]}}, file)
sys.exit(7)
"""
STRAY = """
from dovetail.interfaces.client import ClientProgram, LaunchSettings
from dovetail.interfaces.plugin import Info

class Stray(ClientProgram):
    info = Info(summary="writes beside its folder")
    program = "codex"
    install = "nothing"

    def settings(self, server):
        return LaunchSettings(files={"../out": "x"})
"""

DOCS = Path(__file__).parents[3] / "docs" / "how_to"
MINE = DOCS.joinpath("use_coding_agents.md").read_text().split("```python\n")[1].split("```")[0]
"""The client that the docs show."""


class Listing(BaseHTTPRequestHandler):
    """Answers /v1/models to the right key."""

    server: Any

    def do_GET(self) -> None:
        is_allowed = self.headers.get("Authorization") in self.server.keys
        body: Any = {"error": {"message": "no such key"}}
        if is_allowed:
            length = self.server.context_tokens
            names = ("first", "second")
            body = {"data": [{"id": name, "max_model_len": length} for name in names]}
        data = json.dumps(body).encode()
        self.send_response(200 if is_allowed else 401)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture
def server() -> Iterator[Any]:
    made: Any = ThreadingHTTPServer(("127.0.0.1", 0), Listing)
    made.keys, made.context_tokens = {None}, 65_536
    made.url = f"http://127.0.0.1:{made.server_port}"
    thread = threading.Thread(target=made.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield made
    made.shutdown()
    made.server_close()
    thread.join()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with a home, no running servers, and no programs but the interpreter's."""
    for name in ("home", "run", "state", "bin"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    for name in ("OPENAI_API_KEY", "DOVETAIL_API_KEY", "DOVETAIL_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def program(place: Path) -> Callable[..., dict[str, Any]]:
    """Install a noting program of a name; the result reads its note."""

    def install(name: str, source: str = NOTING) -> Callable[[], dict[str, Any]]:
        note = place / "note.json"
        path = place / "bin" / name
        path.write_text(f"#!{sys.executable}\n{source.format(note=str(note))}")
        path.chmod(0o755)
        return lambda: dict(json.loads(note.read_text()))

    return install


def scripted(place: Path, name: str, text: str) -> None:
    """Install a program of a few lines of shell."""
    path = place / "bin" / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def error_of(capsys: pytest.CaptureFixture[str], *words: str, status: int = 2) -> str:
    assert main(["launch", *words]) == status
    return capsys.readouterr().err


def test_a_program_is_run_with_its_settings(
    place: Path, server: Any, program: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEPT", "yes")
    note = program("codex")
    words = ["launch", "codex", "--url", f"{server.url}/v1/", "--", "exec", "--json", "say hi"]
    assert main(words) == 7
    seen = note()
    assert seen["words"] == ["--profile", "dovetail", "exec", "--json", "say hi"]
    home = place / "state" / "dovetail" / "clients" / "codex"
    assert seen["env"]["CODEX_HOME"] == str(home) and seen["env"]["KEPT"] == "yes"
    file = home / "dovetail.config.toml"
    settings = tomllib.loads(file.read_text())
    assert settings["model"] == "first"
    assert settings["model_context_window"] == 65_536
    assert settings["model_providers"]["dovetail"]["base_url"] == f"{server.url}/v1"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 and list(home.iterdir()) == [file]
    assert list((place / "home").iterdir()) == []


def test_what_the_program_keeps_in_its_folder_stays(place: Path, server: Any, program: Any) -> None:
    program("codex")
    home = place / "state" / "dovetail" / "clients" / "codex"
    home.mkdir(parents=True)
    (home / "config.toml").write_text("kept = true")
    (home / "dovetail.config.toml").write_text("older")
    assert main(["launch", "codex", "--url", server.url, "--model-name", "second"]) == 7
    assert (home / "config.toml").read_text() == "kept = true"
    assert 'model = "second"' in (home / "dovetail.config.toml").read_text()


def test_a_model_that_is_not_served(
    server: Any, program: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    program("claude")
    text = error_of(capsys, "claude", "--url", server.url, "--model-name", "third")
    assert "'third'" in text and "first, second" in text


@pytest.mark.parametrize("more", [[], ["--model", "first"], ["--model", "/models/m"]])
def test_the_running_server_is_used(server: Any, program: Any, more: list[str]) -> None:
    """With no flags of serve, or with a model that it serves."""
    note = program("claude")
    with records.record_removed():
        records.write_record(server.url, ["first", "second"], "/models/m")
        assert main(["launch", "claude", *more, "--", "-p", "hi"]) == 7
    seen = note()
    assert seen["words"][0] == "--settings" and seen["words"][2:] == ["-p", "hi"]
    assert seen["env"]["ANTHROPIC_BASE_URL"] == server.url
    assert seen["env"]["ANTHROPIC_MODEL"] == "first"


def test_one_of_several_servers_is_named(
    place: Path, program: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    program("claude")
    records.write_record("http://127.0.0.1:1", ["a"], "/a")
    (own,) = (place / "run" / "dovetail").iterdir()
    own.with_name("other.json").write_text(own.read_text().replace(":1", ":2"))
    text = error_of(capsys, "claude")
    assert "2 servers could be meant" in text and "--url" in text
    assert "http://127.0.0.1:1 (a)" in text and "http://127.0.0.1:2 (a)" in text


def test_a_server_on_a_unix_socket_is_passed_over(
    program: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    program("claude")
    with records.record_removed():
        records.write_record("unix:/run/s", ["a"], "/a")
        assert "no server runs here" in error_of(capsys, "claude")


def test_without_a_server_a_model_is_asked_for(
    program: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    program("claude")
    text = error_of(capsys, "claude", "--api-key", "k")
    assert "no server runs here" in text and "--model" in text


def test_flags_of_serve_are_not_ignored(
    server: Any, program: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    program("claude")
    text = error_of(capsys, "claude", "--url", server.url, "--max-model-len", "99")
    assert "--url names a server that runs already" in text


@pytest.mark.parametrize("way", ["flag", "variable"])
def test_the_key_is_handed_over(
    server: Any, program: Any, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    server.keys = {"Bearer right"}
    note = program("opencode")
    words = ["--api-key", "right"] if way == "flag" else []
    if way == "variable":
        monkeypatch.setenv("OPENAI_API_KEY", "right")
    assert main(["launch", "opencode", "--url", server.url, *words]) == 7
    config = json.loads(note()["env"]["OPENCODE_CONFIG_CONTENT"])
    assert config["provider"]["dovetail"]["options"]["apiKey"] == "right"


def test_a_wrong_key_is_an_error(
    server: Any, program: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    server.keys = {"Bearer right"}
    program("opencode")
    text = error_of(capsys, "opencode", "--url", server.url, "--api-key", "x", status=1)
    assert "no such key" in text


@pytest.mark.parametrize("name", ["aider", "claude", "cline", "codex", "opencode"])
def test_what_is_printed_does_the_same(
    place: Path,
    server: Any,
    program: Any,
    capsys: pytest.CaptureFixture[str],
    name: str,
) -> None:
    note = program(name)
    words = ["launch", name, "--url", server.url, "--", "-x", "it's"]
    assert main(words) == 7
    launched, folder = note(), place / "state" / "dovetail"
    files = {path: path.read_text() for path in folder.rglob("*") if path.is_file()}
    (place / "note.json").unlink()
    for path in files:
        path.unlink()
    assert main([*words[:2], "--print", *words[2:]]) == 0
    assert not (place / "note.json").exists() and not any(path.exists() for path in files)
    script = capsys.readouterr().out
    assert subprocess.run(["sh", "-c", script]).returncode == 7
    by_hand = note()
    assert by_hand["words"] == launched["words"]
    changed = {key: value for key, value in launched["env"].items() if os.environ.get(key) != value}
    assert changed == {key: by_hand["env"].get(key) for key in changed}
    assert files == {path: path.read_text() for path in files}


def test_a_program_that_is_not_installed(
    server: Any, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["launch", "codex", "--url", server.url]) == 1
    out, err = capsys.readouterr()
    assert "codex is not installed" in err and "npm install -g @openai/codex" in err
    assert "export CODEX_HOME=" in out and f'base_url = "{server.url}/v1"' in out
    assert list((place / "state").iterdir()) == []


def test_settings_of_a_server_that_does_not_run(
    program: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    program("claude")
    words = ("--model", "org/m", "--port", "81", "--host", "0.0.0.0", "--api-key", "k")
    assert main(["launch", "claude", "--print", *words]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("# No such server runs here")
    assert "export ANTHROPIC_BASE_URL=http://127.0.0.1:81" in lines
    assert "export ANTHROPIC_MODEL=org/m" in lines and "export ANTHROPIC_AUTH_TOKEN=k" in lines


def test_a_small_context_is_reported(
    server: Any, program: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    program("claude")
    server.context_tokens = 2_048
    text = error_of(capsys, "claude", "--url", server.url, status=7)
    assert "first has a context of 2,048 tokens" in text
    server.context_tokens = 65_536
    assert error_of(capsys, "claude", "--url", server.url, status=7) == ""


def test_a_program_that_a_signal_ends(place: Path, server: Any) -> None:
    scripted(place, "claude", "kill -9 $$")
    assert main(["launch", "claude", "--url", server.url]) == 137


def test_ctrl_c_is_the_programs(place: Path, server: Any) -> None:
    scripted(place, "claude", "kill -INT $PPID; sleep 0.2; exit 5")
    assert main(["launch", "claude", "--url", server.url]) == 5


def test_sigterm_ends_both(place: Path, server: Any) -> None:
    scripted(
        place, "claude", f"echo $$ > {place / 'pid'}; sleep 0.3; kill -TERM $PPID; exec sleep 60"
    )
    with pytest.raises(SystemExit) as left:
        main(["launch", "claude", "--url", server.url])
    assert left.value.code == 143
    with pytest.raises(ProcessLookupError):
        os.kill(int((place / "pid").read_text()), 0)


def test_a_client_in_a_file_of_its_own(place: Path, server: Any, program: Any) -> None:
    note = program("my-agent")
    (place / "mine.py").write_text(MINE)
    client = f"{place / 'mine.py'}:MyAgent"
    assert main(["launch", client, "--url", server.url, "--", "--fast", "task"]) == 7
    seen, file = note(), place / "state" / "dovetail" / "clients" / "my-agent" / "settings.ini"
    assert seen["env"]["MY_AGENT_URL"] == f"{server.url}/v1"
    assert seen["words"] == ["--config", str(file), "--fast", "task"]
    assert file.read_text() == "model = first\n"


def test_an_unknown_client_is_an_error_with_the_names(capsys: pytest.CaptureFixture[str]) -> None:
    text = error_of(capsys, "cursor", status=2)
    assert 'no client "cursor"' in text and "codex" in text


def test_a_file_of_a_plugin_stays_in_its_folder(
    place: Path, server: Any, program: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    program("codex")
    (place / "stray.py").write_text(STRAY)
    client = f"{place / 'stray.py'}:Stray"
    assert "'../out' is not within the folder" in error_of(
        capsys, client, "--url", server.url, status=2
    )
    assert not (place / "state" / "dovetail" / "clients" / "out").exists()


def test_a_folder_that_cannot_be_written(
    place: Path, server: Any, program: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    program("codex")
    (place / "state" / "dovetail").write_text("a file")
    text = error_of(capsys, "codex", "--url", server.url, status=1)
    assert "cannot write the settings of codex" in text and "XDG_STATE_HOME" in text


def test_an_unknown_client_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert "nearest: codex" in error_of(capsys, "codx")


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("http://h:1", "http://h:1"),
        ("http://h:1/v1/", "http://h:1"),
        ("https://h/models/v1", "https://h/models"),
        ("http://0.0.0.0:8000", "http://127.0.0.1:8000"),
        ("http://[::]:8000/v1", "http://[::1]:8000"),
    ],
)
def test_addresses(url: str, base: str) -> None:
    assert base_of(url) == base

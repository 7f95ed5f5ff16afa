"""`ps`, `stop` and `run` with a server of several models that runs already."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from dovetail.cli.main import main
from dovetail.server.launch.records import write_record

CARDS = [
    {"id": "a", "state": "loaded", "needed_bytes": 3 << 20, "parent": None},
    {"id": "b", "state": "loaded", "needed_bytes": 1 << 20, "expires_at": "9999-12-31T23:59:59Z"},
    {"id": "org/c", "state": "unloaded", "size_bytes": 5},
]


class Gateway:
    """Answers as a gateway of CARDS does; `calls` are the requests for models' names and bodies."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []
        gateway = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.respond(*gateway.get(unquote(self.path)))

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                gateway.calls.append((self.path, body))
                if self.path == "/models/unload":
                    self.respond(200, b'{"success": true}')
                else:
                    chunk = {"choices": [{"delta": {"content": "hi there"}, "index": 0}]}
                    data = f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n"
                    self.respond(200, data.encode(), "text/event-stream")

            def respond(self, status: int, data: bytes, kind: str = "application/json") -> None:
                self.send_response(status)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *words: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def get(self, path: str) -> tuple[int, bytes]:
        if path == "/v1/models":
            leaves = (datetime.now(UTC) + timedelta(seconds=3690)).isoformat()
            return 200, json.dumps(
                {"data": [CARDS[0] | {"expires_at": leaves}, *CARDS[1:]]}
            ).encode()
        found = [card for card in CARDS if path == f"/v1/models/{card['id']}"]
        return (200, json.dumps(found[0]).encode()) if found else (404, b"{}")


@pytest.fixture
def gateway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gateway]:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    found = Gateway()
    thread = threading.Thread(target=found.server.serve_forever, args=(0.02,))
    thread.start()
    write_record(found.url, ["a", "b"], "")
    yield found
    found.server.shutdown()
    thread.join()
    found.server.server_close()


def test_ps_shows_the_loaded_models(gateway: Gateway, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ps"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[3][1:4] == ["MODEL", "STATE", "NEEDS"]
    assert lines[4][1:3] == ["a", "loaded"] and lines[4][-4:] == ["1", "h", "1", "min"]
    assert lines[5][1:3] == ["b", "loaded"]
    assert lines[5][-1] == "stays"
    assert len(lines) == 6  # org/c is not loaded
    assert main(["ps", "--json"]) == 0
    (server,) = json.loads(capsys.readouterr().out)
    assert [(one["name"], one["state"]) for one in server["models"]] == [
        ("a", "loaded"), ("b", "loaded"), ("org/c", "unloaded"),
    ]  # fmt: skip


def test_stop_unloads_a_model_of_a_server(
    gateway: Gateway, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["stop", "org/c"]) == 0
    assert "unloaded org/c" in capsys.readouterr().out
    assert gateway.calls == [("/models/unload", {"model": "org/c"})]
    assert main(["stop", "nothing"]) == 2
    assert "no server nothing runs here" in capsys.readouterr().err


def test_run_uses_a_server_that_offers_the_model(
    gateway: Gateway, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "org/c", "-q", "hello", "--max-tokens", "5"]) == 0
    told = capsys.readouterr()
    assert "hi there" in told.out
    assert "org/c is served by process" in told.err
    ((path, body),) = gateway.calls
    assert path == "/v1/chat/completions"
    assert (body["model"], body["max_tokens"]) == ("org/c", 5)
    assert body["messages"][-1]["content"] == "hello"


@pytest.mark.parametrize("words", [["unknown"], ["org/c", "--max-model-len", "64"]])
def test_run_starts_a_server_of_its_own_otherwise(
    gateway: Gateway, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from dovetail_plugins.commands import _server_process

    class Started(Exception):
        pass

    def start(config: Any) -> Any:
        raise Started

    monkeypatch.setattr(_server_process, "server_of", start)
    with pytest.raises(Started):
        main(["run", *words, "-q", "hello"])
    assert gateway.calls == []

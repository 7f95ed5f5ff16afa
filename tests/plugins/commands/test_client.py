"""chat and complete against a small server that plays back a stream."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from dovetail.cli.main import main


class Played(BaseHTTPRequestHandler):
    """Answers /v1/models and streams the pieces that `server.pieces` holds."""

    server: Any

    def do_GET(self) -> None:
        self._note(None)
        self._json(200, {"data": [{"id": "first"}, {"id": "second"}]})

    def do_POST(self) -> None:
        length = int(self.headers["Content-Length"])
        self._note(json.loads(self.rfile.read(length)))
        if self.server.status != 200:
            self._json(self.server.status, {"error": {"message": "not today"}})
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for piece in self.server.pieces:
            self.wfile.write(f"data: {json.dumps(piece)}\n\n: note\n\n".encode())
        self.wfile.write(b"data: [DONE]\n\n")

    def _note(self, body: Any) -> None:
        self.server.seen.append((self.path, body, self.headers.get("Authorization")))

    def _json(self, status: int, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture
def server() -> Iterator[Any]:
    made: Any = ThreadingHTTPServer(("127.0.0.1", 0), Played)
    made.seen, made.pieces, made.status = [], [], 200
    made.url = f"http://127.0.0.1:{made.server_port}/v1"
    thread = threading.Thread(target=made.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield made
    made.shutdown()
    made.server_close()
    thread.join()


def delta(**fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": fields}]}


def type_in(monkeypatch: pytest.MonkeyPatch, *lines: str | type[BaseException]) -> None:
    """Let input() return these lines, or raise, and then end."""
    left = list(lines)

    def read(prompt: str) -> str:
        line = left.pop(0) if left else EOFError
        if isinstance(line, str):
            return line
        raise line

    monkeypatch.setattr("builtins.input", read)


def contents(server: Any) -> list[list[str]]:
    """Return the contents of the messages of every chat request."""
    bodies = [body for _, body, _ in server.seen if body]
    return [[message["content"] for message in body["messages"]] for body in bodies]


def test_chat_once(server: Any, capsys: pytest.CaptureFixture[str]) -> None:
    server.pieces = [delta(role="assistant"), delta(content="Grüß"), delta(content=" dich")]
    words = ["chat", "--url", server.url, "--system-prompt", "Be kind.", "-q", "Hi"]
    assert main([*words, "--temperature", "0", "--api-key", "k"]) == 0
    assert capsys.readouterr().out == "Grüß dich\n"
    assert [path for path, _, _ in server.seen] == ["/v1/models", "/v1/chat/completions"]
    body = server.seen[1][1]
    assert body["model"] == "first"
    assert body["temperature"] == 0
    assert body["stream"] is True
    assert [m["role"] for m in body["messages"]] == ["system", "user"]
    assert server.seen[1][2] == "Bearer k"


def test_chat_keeps_the_history(
    server: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    server.pieces = [delta(content="yes")]
    type_in(monkeypatch, "one", "", "two")
    assert main(["chat", "--url", server.url, "--model-name", "mine"]) == 0
    last = server.seen[-1][1]
    assert [m["content"] for m in last["messages"]] == ["one", "yes", "two"]
    assert last["model"] == "mine"
    assert len(server.seen) == 2


def test_commands_of_the_chat(
    server: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    server.pieces = [delta(content="yes")]
    type_in(
        monkeypatch,
        *["one", "/clear", "two", "/system Be brief.", "three", "/system", "four"],
        *["/help", "/nothing", "/usr/bin", "/exit", "never"],
    )
    assert main(["chat", "--url", server.url, "--system-prompt", "Be kind."]) == 0
    assert contents(server) == [
        ["Be kind.", "one"],
        ["Be kind.", "two"],
        ["Be brief.", "three"],
        ["four"],
        ["four", "yes", "/usr/bin"],
    ]
    out = capsys.readouterr().out
    assert "/system TEXT" in out
    assert "there is no command /nothing" in out


def test_a_message_of_several_lines(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    quoted = ['"""def f():', "", "    return 1", '"""', 'x """', '"""one line"""']
    type_in(monkeypatch, *quoted, '"""', "begun", KeyboardInterrupt, "last")
    assert main(["chat", "--url", server.url]) == 0
    asked = [messages[-1] for messages in contents(server)]
    assert asked == ["def f():\n\n    return 1", 'x """', "one line", "last"]


def test_reasoning_stands_apart_and_is_not_sent_back(
    server: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    server.pieces = [delta(reasoning_content="Hm"), delta(reasoning="m."), delta(content="Yes.")]
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    type_in(monkeypatch, "one", "two")
    assert main(["chat", "--url", server.url]) == 0
    assert "\x1b[2mHm\x1b[0m\x1b[2mm.\x1b[0m\n\nYes.\n" in capsys.readouterr().out
    assert contents(server)[-1] == ["one", "Yes.", "two"]


def test_ctrl_c_stops_an_answer_and_only_that(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from dovetail_plugins.commands.chat import Chat

    closed: list[str] = []

    class Slow:
        def stream(self, path: str, body: Any) -> Iterator[Any]:
            try:
                yield delta(content="so far")
                if len(body["messages"]) == 1:
                    raise KeyboardInterrupt
            finally:
                closed.append(path)

    chat = Chat(Slow(), {"model": "m"}, None)
    type_in(monkeypatch, "one", KeyboardInterrupt, "two")
    chat.converse()
    assert [message["content"] for message in chat.history] == ["one", "so far", "two", "so far"]
    assert len(closed) == 2
    out = capsys.readouterr().out
    assert "so far [stopped]\n" in out
    assert "Ctrl-D leaves." in out


def test_complete_once(server: Any, capsys: pytest.CaptureFixture[str]) -> None:
    server.pieces = [{"choices": [{"text": "b c"}]}, {"choices": []}, {"choices": [{"text": " d"}]}]
    assert main(["complete", "--url", server.url, "--max-tokens", "3", "-q", "a"]) == 0
    assert capsys.readouterr().out == "b c d\n"
    path, body, _ = server.seen[1]
    assert path == "/v1/completions"
    assert (body["prompt"], body["max_tokens"]) == ("a", 3)


def test_an_address_without_a_path_means_v1(
    server: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    server.pieces = [{"choices": [{"text": "b"}]}]
    address = server.url.removesuffix("/v1")
    assert main(["complete", "--url", address, "-q", "a"]) == 0
    assert capsys.readouterr().out == "b\n"
    assert [path for path, _, _ in server.seen] == ["/v1/models", "/v1/completions"]


def test_the_key_may_come_from_the_environment(
    server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "from-env")
    assert main(["complete", "--url", server.url, "-q", "a"]) == 0
    assert {key for _, _, key in server.seen} == {"Bearer from-env"}


@pytest.mark.parametrize(
    ("status", "hint"), [(401, "--api-key"), (404, "--url"), (503, "not today")]
)
def test_refusals_are_reported(
    status: int, hint: str, server: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    server.status = status
    assert main(["chat", "--url", server.url, "-q", "a"]) == 1
    error = capsys.readouterr().err
    assert f"status {status}: not today" in error
    assert hint in error


def test_an_error_in_the_stream_is_reported(
    server: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    server.pieces = [delta(content="so far"), {"error": {"message": "engine gone"}}]
    assert main(["chat", "--url", server.url, "-q", "a"]) == 1
    assert "engine gone" in capsys.readouterr().err


def test_no_server(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chat", "--url", "http://127.0.0.1:9/v1", "-q", "a"]) == 1
    assert "dovetail serve" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    "url", ["localhost:8000", "http://localhost:many", "http://[::1", "http://"]
)
def test_a_wrong_address(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chat", "--url", url, "-q", "a"]) == 2
    assert "is not an address" in capsys.readouterr().err


def test_https_where_http_is_spoken(server: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chat", "--url", server.url.replace("http", "https"), "-q", "a"]) == 1
    assert "https?" in capsys.readouterr().err.splitlines()[-1]

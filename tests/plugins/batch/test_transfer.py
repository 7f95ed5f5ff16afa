"""GET and PUT against a server of the standard library, with the ways it can fail."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from dovetail_plugins.batch import transfer
from dovetail_plugins.batch.transfer import TransferError, fetch, send, shown

DATA = b"0123456789" * 50_000


class Store(BaseHTTPRequestHandler):
    """Answers with `server.plan`, a list of statuses; "short" breaks off in the middle."""

    server: Any

    def do_GET(self) -> None:
        step = self._step()
        self.send_response(200 if step == "short" else step)
        self.send_header("Content-Length", str(len(DATA)))
        self.end_headers()
        self.wfile.write(DATA[: 1000 if step == "short" else None])

    def do_PUT(self) -> None:
        self.server.put = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.headers = self.headers
        self.send_response(self._step())
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _step(self) -> Any:
        self.server.num_asked += 1
        return self.server.plan.pop(0) if self.server.plan else 200

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr(transfer, "PAUSES_S", (0.0, 0.0))
    made: Any = ThreadingHTTPServer(("127.0.0.1", 0), Store)
    made.plan, made.put, made.num_asked = [], None, 0
    made.url = f"http://127.0.0.1:{made.server_port}/file?signature=secret"
    thread = threading.Thread(target=made.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield made
    made.shutdown()
    made.server_close()
    thread.join()


@pytest.mark.parametrize("plan", [[], [503], ["short", 500]])
def test_fetch(plan: list[Any], store: Any, tmp_path: Path) -> None:
    store.plan = list(plan)
    fetch(store.url, tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == DATA
    assert store.num_asked == len(plan) + 1


@pytest.mark.parametrize("plan", [[], [500, 503]])
def test_send(plan: list[Any], store: Any, tmp_path: Path) -> None:
    store.plan = list(plan)
    (tmp_path / "f").write_bytes(DATA)
    send(tmp_path / "f", store.url)
    assert store.put == DATA
    assert store.headers["Content-Type"] == "application/jsonl"


@pytest.mark.parametrize(
    ("plan", "num_asked", "words"),
    [
        ([403], 1, "status 403"),
        ([500, 500, 500], 3, "status 500"),
        (["short"] * 3, 3, "broke off after"),
    ],
)
def test_giving_up(plan: list[Any], num_asked: int, words: str, store: Any, tmp_path: Path) -> None:
    store.plan = list(plan)
    with pytest.raises(TransferError, match=words) as caught:
        fetch(store.url, tmp_path / "f")
    assert store.num_asked == num_asked
    assert "secret" not in str(caught.value)


def test_what_may_be_secret_is_not_shown() -> None:
    assert shown("https://me:pw@host:81/a/b?sig=x#y") == "https://host:81/a/b"

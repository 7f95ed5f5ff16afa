"""Ollama's registry on this machine: manifests and blobs over the standard library's server.

GET /v2/NAMESPACE/MODEL/manifests/TAG and /v2/NAMESPACE/MODEL/blobs/DIGEST; blobs are redirected to
another host and may be asked for in ranges, as the registry's are.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

KIND = "application/vnd.ollama.image."


def digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def manifest_of(layers: Sequence[tuple[str, bytes]], config: bytes = b"{}") -> dict[str, Any]:
    """Return the manifest of layers, by kind."""
    rows = [
        {"mediaType": KIND + kind, "digest": digest_of(data), "size": len(data)}
        for kind, data in layers
    ]
    own = {"mediaType": "application/vnd.docker.container.image.v1+json"}
    own |= {"digest": digest_of(config), "size": len(config)}  # type: ignore[dict-item]
    return {"schemaVersion": 2, "config": own, "layers": rows}


class FakeRegistry:
    """The registry; a context manager. `models`: NAMESPACE/MODEL:TAG -> manifest; `blobs` by
    digest; `wrong`: digest -> what is sent instead; `cuts`: digest -> after how many bytes the
    connection is closed, once each; `refuses_ranges`: a range is answered with everything. While
    `gate` is cleared, blobs stop halfway. `asked` has the digest and the range of each request."""

    def __init__(self) -> None:
        self.models: dict[str, bytes] = {}
        self.blobs: dict[str, bytes] = {}
        self.wrong: dict[str, bytes] = {}
        self.cuts: dict[str, list[int]] = {}
        self.refuses_ranges = False
        self.statuses: dict[str, list[int]] = {}
        self.asked: list[tuple[str, str]] = []
        self.gate = threading.Event()
        self.gate.set()
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                with contextlib.suppress(ConnectionError):
                    registry._answer(self)

            def log_message(self, *words: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._other_host = f"http://localhost:{self._server.server_port}"

    def add(self, name: str, *layers: tuple[str, bytes], config: bytes = b"{}") -> None:
        """Add a model NAMESPACE/MODEL:TAG of (kind, content)."""
        self.models[name] = json.dumps(manifest_of(layers, config)).encode()
        for data in (config, *(data for _, data in layers)):
            self.blobs[digest_of(data)] = data

    def ranges_of(self, content: bytes) -> list[str]:
        """Return the ranges asked of a blob, in order; "" for all of it."""
        return [span for digest, span in self.asked if digest == digest_of(content)]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *reason: object) -> None:
        self.gate.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _answer(self, request: BaseHTTPRequestHandler) -> None:
        parts = request.path.strip("/").split("/")
        if parts[0] == "cdn":
            self._send_blob(request, parts[1], request.headers.get("range", ""))
            return
        name = "/".join(parts[1:3])
        if parts[3] == "manifests":
            data = self.models.get(f"{name}:{parts[4]}")
            accepts = "distribution.manifest.v2+json" in request.headers.get("accept", "")
            _send(request, 200 if data is not None and accepts else 404, data or b"{}")
        elif parts[4] in self.blobs:
            request.send_response(307)
            request.send_header("Location", f"{self._other_host}/cdn/{parts[4]}")
            request.end_headers()
        else:
            _send(request, 404, b"{}")

    def _send_blob(self, request: BaseHTTPRequestHandler, digest: str, span: str) -> None:
        self.asked.append((digest, span.removeprefix("bytes=")))
        statuses = self.statuses.get(digest, [])
        if statuses:
            _send(request, statuses.pop(0), b"")
            return
        data = self.wrong.get(digest, self.blobs[digest])
        start = int(span.removeprefix("bytes=").partition("-")[0]) if span else 0
        if self.refuses_ranges:
            span, start = "", 0
        rest = data[start:]
        request.send_response(206 if span else 200)
        request.send_header("Content-Length", str(len(rest)))
        request.end_headers()
        cuts = self.cuts.get(digest, [])
        if cuts:
            request.wfile.write(rest[: cuts.pop(0)])
            return
        half = len(rest) // 2
        request.wfile.write(rest[:half])
        request.wfile.flush()
        self.gate.wait(30)
        request.wfile.write(rest[half:])


def _send(request: BaseHTTPRequestHandler, status: int, body: bytes) -> None:
    request.send_response(status)
    request.send_header("Content-Length", str(len(body)))
    request.end_headers()
    request.wfile.write(body)

"""Stores of models as other programs lay them out: the hub's cache, Ollama's, LM Studio's.

FakeHub is a small server of the hub's HTTP API, and of ModelScope's, which breaks one download off
halfway.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

COMMIT = "c" * 40
GGUF = b"GGUF and what follows"


def write_cached(cache: Path, name: str, files: Mapping[str, bytes], commit: str = COMMIT) -> Path:
    """Lay a model into a hub cache, files as links to blobs; return its snapshot."""
    repo = cache / f"models--{name.replace('/', '--')}"
    snapshot = repo / "snapshots" / commit
    for folder in (snapshot, repo / "refs", repo / "blobs"):
        folder.mkdir(parents=True, exist_ok=True)
    (repo / "refs" / "main").write_text(commit)
    for file, content in files.items():
        blob = repo / "blobs" / hashlib.sha256(content).hexdigest()
        blob.write_bytes(content)
        link = snapshot / file
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(blob)
    return snapshot


def add_to_ollama(
    store: Path,
    name: str,
    content: bytes,
    *,
    further: tuple[str, ...] = (),
    texts: Mapping[str, str] = MappingProxyType({}),
) -> Path:
    """Add a model HOST/NAMESPACE/MODEL:TAG to an Ollama store; return its blob. `further` are more
    kinds of layers, `texts` kinds of layers with their content."""
    blobs = store / "blobs"
    blobs.mkdir(parents=True, exist_ok=True)
    blob = blobs / f"sha256-{hashlib.sha256(content).hexdigest()}"
    blob.write_bytes(content)
    facts = json.dumps({"model_family": "qwen2", "file_type": "Q4_K_M"}).encode()
    config = blobs / f"sha256-{hashlib.sha256(facts).hexdigest()}"
    config.write_bytes(facts)
    layers = [_layer(kind, blob) for kind in ("model", *further)]
    for kind, text in texts.items():
        file = blobs / f"sha256-{hashlib.sha256(text.encode()).hexdigest()}"
        file.write_text(text)
        layers.append(_layer(kind, file))
    manifest = store / "manifests" / name.replace(":", "/")
    manifest.parent.mkdir(parents=True, exist_ok=True)
    manifest.write_text(json.dumps({"config": _layer("", config), "layers": layers}))
    return blob


def _layer(kind: str, blob: Path) -> dict[str, Any]:
    return {
        "mediaType": f"application/vnd.ollama.image.{kind}",
        "digest": blob.name.replace("-", ":", 1),
        "size": blob.stat().st_size,
    }


class FakeHub:
    """A hub with one repository: org/model of the hub, org/a.model of ModelScope. Use as a context
    manager.

    The first answer with `broken` ends halfway; `asked` are paths, with the range if one was asked.
    """

    def __init__(self, files: Mapping[str, bytes], broken: str = "") -> None:
        self.files = dict(files)
        self.asked: list[str] = []
        self.broken = broken
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                hub.answer(self)

            def do_HEAD(self) -> None:
                hub.answer(self)

            def log_message(self, *words: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *reason: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        """Answer one request."""
        path, wanted = request.path.partition("?")[0], request.headers.get("range")
        self.asked.append(f"{request.command} {path}" + (f" {wanted}" if wanted else ""))
        if path.startswith("/api/models/org/model/tree/"):
            tree = [{"type": "file", "oid": "0" * 40, "size": len(data), "path": name}
                    for name, data in self.files.items()]  # fmt: skip
            return self._send(request, json.dumps(tree).encode())
        if path in ("/api/models/org/model", f"/api/models/org/model/revision/{COMMIT}",
                    "/api/models/org/model/revision/main"):  # fmt: skip
            siblings = [{"rfilename": name} for name in self.files]
            info = {"id": "org/model", "sha": COMMIT, "siblings": siblings}
            return self._send(request, json.dumps(info).encode())
        if path == "/api/v1/models/org/a.model/repo/files":
            return self._send(request, json.dumps({"Data": {"Files": self._modelscope()}}).encode())
        query = parse_qs(urlsplit(request.path).query)
        name = path.removeprefix(f"/org/model/resolve/{COMMIT}/")
        name = query.get("FilePath", [name])[0]
        if name not in self.files:
            return self._send(request, b'{"error": "not found"}', 404)
        return self._send_file(request, name, wanted)

    def _modelscope(self) -> list[dict[str, Any]]:
        """Return the list of files as ModelScope writes it."""
        files = [
            {"Path": name, "Type": "blob", "Size": len(data),
             "Sha256": hashlib.sha256(data).hexdigest()}
            for name, data in self.files.items()
        ]  # fmt: skip
        return [*files, {"Path": "folder", "Type": "tree", "Size": 0}]

    def _send_file(self, request: BaseHTTPRequestHandler, name: str, wanted: str | None) -> None:
        data = self.files[name]
        start = int(wanted.removeprefix("bytes=").partition("-")[0]) if wanted else 0
        etag = {"ETag": f'"{hashlib.sha256(data).hexdigest()}"', "X-Repo-Commit": COMMIT}
        ranged = {"Content-Range": f"bytes {start}-{len(data) - 1}/{len(data)}"} if wanted else {}
        is_cut = name == self.broken and request.command == "GET"
        self._send(request, data[start:], 206 if wanted else 200, {**etag, **ranged}, is_cut)
        self.broken = "" if is_cut else self.broken

    def _send(
        self,
        request: BaseHTTPRequestHandler,
        data: bytes,
        status: int = 200,
        headers: Mapping[str, str] | None = None,
        is_cut: bool = False,
    ) -> None:
        request.send_response(status)
        for name, value in {"Accept-Ranges": "bytes", **(headers or {})}.items():
            request.send_header(name, value)
        request.send_header("Content-Length", str(len(data)))
        request.end_headers()
        if request.command == "GET":
            request.wfile.write(data[: len(data) // 2] if is_cut else data)
        request.close_connection = is_cut

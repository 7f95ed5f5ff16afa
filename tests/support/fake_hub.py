"""A model hub on this machine, over the standard library's server: the hub's documented routes.

/api/models/ORG/MODEL with /revision and /tree; /ORG/MODEL/resolve/COMMIT/FILE with ETag,
X-Repo-Commit and, for large files, X-Linked-Etag, X-Linked-Size and a redirect to another path, as
the hub has them; HEAD and Range. Source: huggingface_hub's documentation of file downloads.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

LARGE = (".safetensors", ".gguf")
"""Files of these endings are large files, with a SHA-256 of their own."""


@dataclass
class Repo:
    """One model. `is_gated`: it needs the token "secret". `wrong`: file -> what is sent instead.
    `cuts`: file -> after how many bytes the connection is closed, once each."""

    files: Mapping[str, bytes]
    is_gated: bool = False
    wrong: dict[str, bytes] = field(default_factory=dict)
    cuts: dict[str, list[int]] = field(default_factory=dict)

    @property
    def commit(self) -> str:
        ids = {name: _described(name, data)["blobId"] for name, data in sorted(self.files.items())}
        return hashlib.sha1(json.dumps(ids).encode()).hexdigest()


class LocalHub:
    """The hub; a context manager. While `gate` is cleared, large files stop halfway. `asked` has
    every request: method, path, and the range if there is one."""

    def __init__(self, **repos: Repo) -> None:
        self.repos = {name.replace("__", "/"): repo for name, repo in repos.items()}
        self.asked: list[str] = []
        self.gate = threading.Event()
        self.gate.set()
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                hub._answer(self)

            do_HEAD = do_GET

            def log_message(self, *words: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._other_host = f"http://localhost:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *reason: object) -> None:
        self.gate.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def ranges_of(self, file: str) -> list[str]:
        """Return the ranges asked of a file, in order; "" for all of it."""
        wanted = [one for one in self.asked if one.startswith("GET /cdn/") and f"/{file}" in one]
        return [one.partition(" bytes=")[2] for one in wanted]

    def _answer(self, request: BaseHTTPRequestHandler) -> None:
        path, span = request.path.partition("?")[0], request.headers.get("range", "")
        self.asked.append(f"{request.command} {path} {span}".strip())
        parts = path.strip("/").split("/")
        if parts[:2] == ["api", "models"]:
            self._describe(request, "/".join(parts[2:4]), parts[4:])
        elif parts[0] == "cdn":
            self._send_file(request, "/".join(parts[1:3]), "/".join(parts[3:]), span)
        elif len(parts) > 4 and parts[2] == "resolve":
            self._resolve(request, "/".join(parts[:2]), "/".join(parts[4:]), span)
        else:
            _send(request, 404)

    def _repo(self, request: BaseHTTPRequestHandler, name: str) -> Repo | None:
        """Return a model; answer with the hub's error if this client may not have it."""
        repo = self.repos.get(name)
        if repo is None:
            _send(request, 401, {"X-Error-Code": "RepoNotFound"}, b'{"error": "not found"}')
            return None
        if repo.is_gated and request.headers.get("authorization") != "Bearer secret":
            said = {"X-Error-Code": "GatedRepo", "X-Error-Message": f"Access to {name} is gated."}
            _send(request, 401, said, b'{"error": "gated"}')
            return None
        return repo

    def _describe(self, request: BaseHTTPRequestHandler, name: str, rest: list[str]) -> None:
        repo = self._repo(request, name)
        if repo is None:
            return
        rows = [_described(file, data) for file, data in repo.files.items()]
        if rest[:1] == ["tree"]:
            tree = [{"type": "file", "path": r["rfilename"], "oid": r["blobId"], "size": r["size"],
                     **({"lfs": {**r["lfs"], "oid": r["lfs"]["sha256"]}} if r["lfs"] else {})}
                    for r in rows]  # fmt: skip
            _send(request, 200, body=json.dumps(tree).encode())
        else:
            facts = {"id": name, "sha": repo.commit, "siblings": rows}
            _send(request, 200, body=json.dumps(facts).encode())

    def _resolve(self, request: BaseHTTPRequestHandler, name: str, file: str, span: str) -> None:
        repo = self._repo(request, name)
        if repo is None:
            return
        if file not in repo.files:
            _send(request, 404, {"X-Error-Code": "EntryNotFound"})
            return
        row = _described(file, repo.files[file])
        headers = {"X-Repo-Commit": repo.commit}
        if row["lfs"]:
            headers |= {
                "X-Linked-Etag": f'"{row["lfs"]["sha256"]}"',
                "X-Linked-Size": str(row["size"]),
                "Location": f"{self._other_host}/cdn/{name}/{file}",
            }
            _send(request, 302, headers)
        else:
            self._send_file(request, name, file, span, headers | {"ETag": f'"{row["blobId"]}"'})

    def _send_file(
        self,
        request: BaseHTTPRequestHandler,
        name: str,
        file: str,
        span: str,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        repo = self.repos[name]
        data = repo.wrong.get(file, repo.files[file])
        start = int(span.removeprefix("bytes=").partition("-")[0]) if span else 0
        found = {"Accept-Ranges": "bytes", **(headers or {})}
        if span:
            found["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        cuts = repo.cuts.get(file, []) if request.command == "GET" else []
        cut = cuts.pop(0) if cuts else None
        rest = data[start:]
        _head(request, 206 if span else 200, {**found, "Content-Length": str(len(rest))})
        if request.command == "GET":
            request.wfile = _Quiet(request.wfile)  # type: ignore[assignment]
            first = rest[: len(rest) // 2] if cut is None else rest[:cut]
            request.wfile.write(first)
            request.wfile.flush()
            if cut is None:
                if file.endswith(LARGE):
                    self.gate.wait(30)
                request.wfile.write(rest[len(first) :])
        request.close_connection = cut is not None


class _Quiet:
    """A file whose reader may have left."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, data: bytes) -> None:
        with contextlib.suppress(OSError):
            self._file.write(data)


@cache
def _described(file: str, data: bytes) -> dict[str, Any]:
    """Return what the hub says of a file. Git's hash is that of a large file's pointer."""
    is_large = file.endswith(LARGE)
    sha256 = hashlib.sha256(data).hexdigest()
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\n".encode()
    text = pointer if is_large else data
    blob_id = hashlib.sha1(b"blob %d\0" % len(text) + text).hexdigest()
    lfs = {"sha256": sha256, "size": len(data), "pointerSize": len(pointer)} if is_large else None
    return {"rfilename": file, "size": len(data), "blobId": blob_id, "lfs": lfs}


def _head(request: BaseHTTPRequestHandler, status: int, headers: Mapping[str, str]) -> None:
    request.send_response(status)
    for name, value in headers.items():
        request.send_header(name, value)
    request.end_headers()


def _send(
    request: BaseHTTPRequestHandler,
    status: int,
    headers: Mapping[str, str] | None = None,
    body: bytes = b"",
) -> None:
    _head(request, status, {**(headers or {}), "Content-Length": str(len(body))})
    if request.command == "GET":
        request.wfile.write(body)

"""Uploaded files: only what is right stays."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from dovetail.config.sections.frontend import FrontendConfig
from dovetail.errors import RequestError
from dovetail.server.http.body_limits import BodyLimitMiddleware
from dovetail.server.http.front_door import roomy_paths
from dovetail_plugins.created_models import blobs as blobs_module
from dovetail_plugins.created_models.blobs import UNUSED_S, Blobs
from dovetail_plugins.created_models.store import CreatedStore
from dovetail_plugins.gateway.manage.routes import BlobsApi
from support.any_models import any_rig, digest_of, own_stores

DATA = bytes(range(256)) * 9000  # more than a piece


@pytest.fixture(autouse=True)
def stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    own_stores(tmp_path, monkeypatch)
    return tmp_path


def upload(digest: str, content: bytes, **rig: Any) -> tuple[int, str, list[str]]:
    """Return the status of an upload, its error, and the files that are there afterwards."""

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(content), 70_000):
            yield content[start : start + 70_000]

    async def main() -> tuple[int, str]:
        async with any_rig(**rig).client() as client:
            answer = await client.post(f"/api/blobs/{digest}", content=pieces())
            return answer.status_code, answer.json()["error"] if answer.content else ""

    status, error = asyncio.run(main())
    folder = CreatedStore().blobs.folder
    return status, error, sorted(file.name for file in folder.glob("*"))


def test_a_file_is_stored_by_its_digest() -> None:
    digest = digest_of(DATA)
    name = digest.replace(":", "-")
    assert upload(digest, DATA) == (201, "", [name])
    assert (CreatedStore().blobs.folder / name).read_bytes() == DATA
    assert upload(digest, DATA) == (200, "", [name])


def test_a_wrong_checksum_leaves_nothing() -> None:
    status, error, files = upload(digest_of(DATA), DATA[:-1])
    assert (status, files) == (400, [])
    assert digest_of(DATA[:-1]) in error


@pytest.mark.parametrize(
    "digest", ["sha256:abc", "md5:" + "0" * 64, "..%2f..%2fx", "sha256:" + "g" * 64]
)
def test_digests_are_never_paths(digest: str) -> None:
    status, _, files = upload(digest, DATA)
    assert status in (400, 404)
    assert files == []


def test_files_may_be_large_but_not_endless() -> None:
    big = b"x" * 3000
    assert upload(digest_of(big), big, frontend={"max_body_bytes": 2048})[0::2] == (413, [])
    limits = roomy_paths([BlobsApi(None)], FrontendConfig())
    assert limits["/api/blobs"] > FrontendConfig().max_body_bytes
    middleware = BodyLimitMiddleware(
        lambda *_: pytest.fail("refused before"),
        max_bytes=10,
        bytes_per_s=1.0,
        is_busy=lambda: False,
        max_bytes_of={"/api/blobs": 2048},
    )
    for path, size, is_fine in (
        ("/api/blobs/sha256:x", 2048, True),
        ("/api/blobs/sha256:x", 2049, False),
        ("/api/other", 2048, False),
    ):
        assert asyncio.run(passes(middleware, path, size)) is is_fine


async def passes(middleware: BodyLimitMiddleware, path: str, size: int) -> bool:
    """Return whether a body of this size, by its header, reaches the application."""
    sent: list[object] = []
    reached = False

    async def app(scope: object, receive: object, send: object) -> None:
        nonlocal reached
        reached = True

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: object) -> None:
        sent.append(message)

    middleware._app = app
    headers = [(b"content-length", str(size).encode())]
    await middleware({"type": "http", "path": path, "headers": headers}, receive, send)
    return reached


def test_a_full_disk_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = blobs_module.tempfile.mkstemp

    def full(**words: Any) -> tuple[int, str]:
        number, name = usual(**words)
        os.close(number)
        return os.open("/dev/full", os.O_WRONLY), name

    monkeypatch.setattr(blobs_module.tempfile, "mkstemp", full)
    status, error, files = upload(digest_of(DATA), DATA)
    assert (status, files) == (507, [])
    assert "is full" in error
    with pytest.raises(RequestError, match="no room"):
        CreatedStore().blobs.upload("0" * 64, 1 << 60)


def test_a_client_that_leaves_leaves_nothing() -> None:
    digest = digest_of(DATA)
    scope = {
        "type": "http", "method": "POST", "path": f"/api/blobs/{digest}", "query_string": b"",
        "headers": [(b"host", b"localhost")], "http_version": "1.1", "scheme": "http",
        "server": ("localhost", 80), "client": ("127.0.0.1", 1), "root_path": "",
        "raw_path": f"/api/blobs/{digest}".encode(),
    }  # fmt: skip
    messages = [
        {"type": "http.request", "body": DATA[: 1 << 21], "more_body": True},
        {"type": "http.disconnect"},
    ]

    async def main() -> None:
        async def receive() -> Any:
            return messages.pop(0) if messages else await asyncio.Future()

        async def send(message: object) -> None:
            pass

        await any_rig().app(scope, receive, send)

    asyncio.run(main())
    assert list(CreatedStore().blobs.folder.glob("*")) == []


def test_what_no_model_uses_goes_after_a_day(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path / "b")
    for digits in ("1" * 64, "2" * 64):
        blobs.folder.mkdir(exist_ok=True)
        blobs.path(digits).write_bytes(b"x")
    (blobs.folder / ".partial-x").write_bytes(b"x")
    blobs.prune({"1" * 64})
    assert len(list(blobs.folder.glob("*"))) + len(list(blobs.folder.glob(".p*"))) >= 3
    blobs.prune({"1" * 64}, now_s=time.time() + UNUSED_S + 1)
    assert [file.name for file in blobs.folder.iterdir()] == [f"sha256-{'1' * 64}"]

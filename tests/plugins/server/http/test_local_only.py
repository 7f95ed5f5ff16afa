"""A server without a key on a loopback address: what web pages elsewhere send is refused."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from dovetail.config.sections.frontend import FrontendConfig
from dovetail.server.http.addresses import is_local_only
from dovetail.server.http.local_only import LocalOnly
from support.serving import app_for


def status(
    host: str, origin: str | None = None, *, allowed_hosts: Any = (), origins: Any = ()
) -> int:
    app, _ = app_for()
    guarded = LocalOnly(app, hosts=allowed_hosts, origins=origins)
    headers = {"host": host} | ({} if origin is None else {"origin": origin})

    async def main() -> httpx.Response:
        transport = httpx.ASGITransport(app=guarded)
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            return await client.get("/health", headers=headers)

    answer = asyncio.run(main())
    if answer.status_code != 200:
        assert answer.json()["error"]["type"] == "permission_error"
    return answer.status_code


def test_hosts() -> None:
    for host in ("127.0.0.1", "127.0.0.1:8000", "localhost:8000", "LOCALHOST", "[::1]:8000",
                 "app.localhost", "192.168.1.7:80", "0.0.0.0:8000", ""):  # fmt: skip
        assert status(host) == 200, host
    for host in ("evil.example", "evil.example:8000", "127.0.0.1.evil.example",
                 "localhost.evil.example", "evillocalhost", "[::1", "a:b:c"):  # fmt: skip
        assert status(host) == 403, host
    assert status("llm.example:8000", allowed_hosts=("llm.example",)) == 200
    assert status("other.example", allowed_hosts=("llm.example",)) == 403


def test_origins() -> None:
    here = "127.0.0.1:8000"
    for origin in ("http://localhost:3000", "http://127.0.0.1", "https://[::1]:1", "tauri://x",
                   "vscode-webview://abc", "http://app.localhost"):  # fmt: skip
        assert status(here, origin) == 200, origin
    for origin in ("https://evil.example", "null", "http://localhost.evil.example",
                   "http://192.168.1.7", "http://", "chrome-extension://x", ""):  # fmt: skip
        assert status(here, origin) == 403, origin
    assert status(here, "https://chat.example", origins=("https://chat.example",)) == 200
    assert status(here, "https://chat.example:1", origins=("https://chat.example",)) == 403


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({}, True),
        ({"host": "localhost"}, True),
        ({"host": "127.3.0.1"}, True),
        ({"host": "::1"}, True),
        ({"host": "0.0.0.0"}, False),
        ({"host": "::"}, False),
        ({"host": "10.0.0.1"}, False),
        ({"api_key": ("k",)}, False),
        ({"uds": "/tmp/x"}, False),
        ({"allowed_hosts": ("*",)}, False),
    ],
)
def test_where_it_stands(flags: dict[str, Any], expected: bool) -> None:
    assert is_local_only(FrontendConfig(**flags)) == expected

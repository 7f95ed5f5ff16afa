"""A client that hangs up within its body: one line in the log, status 499, no error."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from dovetail.config.sections.frontend import FrontendConfig
from dovetail.server.app import build_app
from dovetail.server.families import build_apis, opened_apis
from dovetail_testing.fakes.async_engine import FakeAsyncEngine
from support.serving import PARSERS, app_for, client_of

KINDS = (
    "application/json",
    "text/plain",
    "application/x-www-form-urlencoded",
    "multipart/form-data; boundary=b",
)


def post_routes(app: Any) -> list[Any]:
    return [route for route in app.router.routes if "POST" in (getattr(route, "methods", 0) or ())]


async def hang_up(app: Any, path: str, kind: str) -> int:
    """Send the first part of a body, then leave; return the status of the answer."""
    incoming = [
        {"type": "http.disconnect"},
        {"type": "http.request", "body": b'{"model": "fa', "more_body": True},
    ]
    statuses: list[int] = []

    async def receive() -> Any:
        return incoming.pop() if len(incoming) > 1 else incoming[0]

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    scope = {
        "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1",
        "method": "POST", "scheme": "http", "path": path, "raw_path": path.encode(),
        "query_string": b"", "root_path": "", "client": ("127.0.0.1", 1), "server": ("test", 80),
        "headers": [(b"content-type", kind.encode()), (b"host", b"test")],
    }  # fmt: skip
    await app(scope, receive, send)
    return statuses[0]


@pytest.mark.parametrize("kind", KINDS)
def test_every_route_takes_it_as_the_clients_fault(
    kind: str, caplog: pytest.LogCaptureFixture, tmp_path: Any
) -> None:
    found: dict[str, int] = {}

    async def main() -> None:
        flags = FrontendConfig(allow_runtime_lora_updating=True, file_storage=str(tmp_path))
        async with opened_apis(build_apis(), flags) as apis:
            app = build_app(FakeAsyncEngine(), flags, apis, parsers=PARSERS)  # type: ignore[arg-type]
            for route in post_routes(app):
                path = route.path.replace("{", "").replace("}", "")
                found[route.path] = await hang_up(app, path, kind)

    with caplog.at_level(logging.INFO, "dovetail"):
        asyncio.run(main())
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert not any(record.exc_info for record in caplog.records)
    assert not {path: status for path, status in found.items() if status >= 500}
    for path in ("/v1/chat/completions", "/v1/files", "/v1/responses", "/api/chat"):
        assert found[path] == 499, path


def test_the_metrics_count_it_as_a_client_that_left() -> None:
    app, _ = app_for()

    async def main() -> str:
        await hang_up(app, "/v1/chat/completions", "application/json")
        async with client_of(app) as http:
            return (await http.get("/metrics")).text

    text = asyncio.run(main())
    assert 'method="POST",route="/v1/chat/completions",status="499"' in text

"""Api: routes that are declared, documented and closed, errors that clients can read."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import re
from collections.abc import Set
from contextlib import asynccontextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from dovetail.config.sections.frontend import FrontendConfig
from dovetail.interfaces.api import GENERATE, Api, ApiError, Route
from dovetail.interfaces.data.profile import ProfileSpec
from dovetail_testing.fakes.async_engine import FakeAsyncEngine, fake_pooling, fake_spec

KEY = "conformance"


@pytest.fixture
def api(plugin: Any) -> Api:
    """Return an object of the family with the options' defaults."""
    family: Api = plugin(plugin.Options())
    return family


def engine_switches() -> Set[str]:
    """Return the flags of an engine that routes may ask for."""
    from dovetail.server.families import ENGINE_SWITCHES

    return ENGINE_SWITCHES.keys()


@pytest.fixture
def frontend(api: Api, tmp_path: Path) -> FrontendConfig:
    """Return flags that switch every route of the family on, with a key for clients. A flag that is
    not a switch names a folder."""
    named = {route.flag for route in api.routes if route.flag is not None} - engine_switches()
    values: dict[str, Any] = {
        name: True if isinstance(getattr(FrontendConfig(), name), bool) else str(tmp_path)
        for name in named
    }
    return FrontendConfig(api_key=(KEY,), **values)


@asynccontextmanager
async def served(api: Api, frontend: FrontendConfig, *tasks: str) -> Any:
    """Give an application that serves only this family, around a fake engine: it generates, or
    pools for the named `tasks`."""
    from dovetail.server.app import build_app
    from dovetail.server.families import opened_apis

    async with opened_apis({"this": api}, frontend) as apis:
        pooling = fake_pooling(tasks=tasks) if tasks else None
        spec = fake_spec(pooling=pooling, profile=ProfileSpec(folder_path=os.devnull))
        engine: Any = FakeAsyncEngine(spec=spec)
        yield build_app(engine, frontend, apis)


def by_tasks(api: Api) -> list[tuple[tuple[str, ...], list[Route]]]:
    """Return the routes with a body, grouped by the model's tasks: generate or none, or any of the
    other tasks."""
    bodies = [route for route in api.routes if route.body is not None]
    tasks = {route.path: api.tasks_of(route) for route in bodies}
    pooled = [r for r in bodies if tasks[r.path] and GENERATE not in tasks[r.path]]
    plain = [r for r in bodies if r not in pooled]
    others = tuple(dict.fromkeys(task for r in pooled for task in tasks[r.path]))
    return [((), plain), *([(others, pooled)] if pooled else ())]


async def answer(
    app: Any, route: Route, *, key: str | None = None, body: bytes = b""
) -> tuple[int, bytes]:
    """Return status and body of one request to a route, its parameters filled in."""
    path = re.sub(r"\{[^}]*\}", "x", route.path)
    headers = [(b"host", b"test"), (b"content-type", b"application/json")]
    if key is not None:
        headers.append((b"authorization", f"Bearer {key}".encode()))
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": route.method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": headers,
        "client": ("127.0.0.1", 1),
        "server": ("test", 80),
    }
    incoming = [{"type": "http.request", "body": body, "more_body": False}]
    sent: list[Any] = []

    async def receive() -> Any:
        if incoming:
            return incoming.pop()
        return await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:])


class TestApi:
    """Clauses of families of endpoints."""

    kind = "api"

    def test_routes_are_distinct_paths(self, api: Api) -> None:
        """There is a route, every path begins with a slash, and none is there twice."""
        claimed = [(route.method, route.path) for route in api.routes]
        assert claimed and len(set(claimed)) == len(claimed)
        paths = [path for _, path in claimed]
        assert all(
            path == "/" or (path.startswith("/") and not path.endswith("/")) for path in paths
        )

    def test_takes_no_route_of_dovetail(self, plugin: Any, api: Api) -> None:
        """No other family claims a route of dovetail's own."""
        from dovetail.server.families import build_apis

        others = [api for api in build_apis().values() if type(api) is not plugin]
        taken = {(route.method, route.path) for cls in others for route in cls.routes}
        assert not taken & {(route.method, route.path) for route in api.routes}

    def test_endpoints_are_documented(self, api: Api) -> None:
        """Every endpoint is an async function whose docstring begins with a sentence: the
        documentation shows it."""
        for route in api.routes:
            assert inspect.iscoroutinefunction(route.endpoint), route.path
            paragraph = (inspect.getdoc(route.endpoint) or "").partition("\n\n")[0]
            assert paragraph.rstrip().endswith("."), f"{route.path}: no sentence"

    def test_flags_are_flags(self, api: Api) -> None:
        """A route that needs a flag names one of the HTTP server's, a switch or one that has no
        value unless given, or one of the engine's that routes may ask for."""
        known = {
            field.name: getattr(FrontendConfig(), field.name) for field in fields(FrontendConfig)
        }
        for route in api.routes:
            if route.flag in engine_switches():
                continue
            value = known.get(route.flag or "", 0)
            assert route.flag is None or value is None or isinstance(value, bool), route.flag

    def test_state_opens_again(self, api: Api, frontend: FrontendConfig) -> None:
        """The family's state can be opened after it was closed."""

        async def open_twice() -> None:
            for _ in range(2):
                async with api.state(frontend):
                    pass

        asyncio.run(open_twice())

    def test_closed_without_a_key(self, api: Api, frontend: FrontendConfig) -> None:
        """With a key set, routes that are not declared open answer 401 to a request without it."""

        async def statuses() -> dict[str, int]:
            async with served(api, frontend) as app:
                closed = [route for route in api.routes if not route.is_open]
                return {route.path: (await answer(app, route))[0] for route in closed}

        assert set(asyncio.run(statuses()).values()) <= {401}

    def test_described_in_openapi(self, api: Api, frontend: FrontendConfig) -> None:
        """/openapi.json has every route but WebSockets, which OpenAPI does not describe, and the
        model of a body if one is declared."""

        async def description(tasks: tuple[str, ...]) -> Any:
            async with served(api, frontend, *tasks) as app:
                return app.openapi()

        def shown(paths: Any, route: Route) -> Any:
            return paths[re.sub(r":\w+\}", "}", route.path)][route.method.lower()]

        for tasks, routes in by_tasks(api):
            paths = asyncio.run(description(tasks))["paths"]
            assert all(shown(paths, one) for one in api.routes if one.method != "WEBSOCKET")
            for route in routes:
                assert route.body is not None
                assert route.body.__name__ in json.dumps(shown(paths, route)["requestBody"])

    def test_a_body_that_is_not_json_is_a_client_error(
        self, api: Api, frontend: FrontendConfig
    ) -> None:
        """A route with a body answers 4xx to one that is not JSON, in words of JSON."""

        async def answers() -> list[tuple[str, int, bytes]]:
            found = []
            for tasks, routes in by_tasks(api):
                async with served(api, frontend, *tasks) as app:
                    found += [
                        (route.path, *await answer(app, route, key=KEY, body=b"{"))
                        for route in routes
                    ]
            return found

        for path, status, body in asyncio.run(answers()):
            assert 400 <= status < 500, f"{path} answers {status}"
            assert isinstance(json.loads(body), dict)

    @pytest.mark.parametrize("status", [400, 404, 500])
    def test_errors_say_what_is_wrong(self, api: Api, status: int) -> None:
        """An error's body is a JSON object that holds the message."""
        error = ApiError(message="the word is missing", type="invalid_request_error")
        body = api.error_body(status, error, "request-1")
        assert isinstance(json.loads(body), dict)
        assert b"the word is missing" in body

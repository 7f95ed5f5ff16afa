"""--middleware: classes and functions round the application, streams through them, wrong paths."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from dovetail.config.sections.frontend import FrontendConfig
from dovetail.errors import ConfigError
from dovetail.server.launch.frontend_checks import check_frontend
from dovetail_testing.fakes.async_engine import Script
from support.serving import USER, app_for, call_asgi, chat, events_of, send

HERE = __name__
Next = Callable[[Request], Awaitable[Response]]


class Stamps:
    """ASGI middleware that marks every answer."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def stamped(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"x-stamp", b"class")]
            await send(message)

        await self.app(scope, receive, stamped)


class Greedy:
    """No middleware: it wants more than the application."""

    def __init__(self, app: Any, setting: str) -> None:
        raise AssertionError("it must not be made")


async def stamps(request: Request, call_next: Next) -> Response:
    response = await call_next(request)
    response.headers["x-function"] = request.state.request_id
    return response


async def refuses(request: Request, call_next: Next) -> Response:
    return JSONResponse({"refused": True}, status_code=418)


async def breaks(request: Request, call_next: Next) -> Response:
    raise KeyError("secret detail")


async def takes_one(request: Request) -> None:
    raise AssertionError("it must not be called")


def plain(request: Request, call_next: Next) -> None:
    raise AssertionError("it must not be called")


NUMBER = 1


def named(*names: str) -> dict[str, Any]:
    return {"middleware": tuple(f"{HERE}.{name}" for name in names)}


def test_classes_and_functions_see_every_answer() -> None:
    app, _ = app_for(**named("Stamps", "stamps"), api_key=("k",))
    for path, status in (("/live", 200), ("/v1/models", 401), ("/nope", 401)):
        answer = send(app, "GET", path, x_request_id="one")
        assert answer.status_code == status
        assert answer.headers["x-stamp"] == "class"
        assert answer.headers["x-function"] == "one"
    plain_app, _ = app_for()
    assert "x-stamp" not in send(plain_app, "GET", "/live").headers


def test_the_last_one_is_outermost() -> None:
    inner, _ = app_for(**named("refuses", "Stamps"))
    assert send(inner, "GET", "/live").headers["x-stamp"] == "class"
    outer, _ = app_for(**named("Stamps", "refuses"))
    answer = send(outer, "GET", "/live")
    assert answer.status_code == 418
    assert "x-stamp" not in answer.headers


def test_files_and_colons_are_paths_too(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("async def mine(request, call_next):\n    return await call_next(request)\n")
    check_frontend(FrontendConfig(middleware=(f"{file}:mine", f"{HERE}:Stamps")))


def test_what_it_raises_is_an_answer() -> None:
    app, _ = app_for(**named("breaks"))
    answer = send(app, "GET", "/live")
    assert answer.status_code == 500
    assert answer.json()["error"]["type"] == "internal_error"
    assert "secret detail" not in answer.text


@pytest.mark.parametrize("names", [("stamps",), ("Stamps", "stamps", "stamps")])
def test_streams_pass_piece_by_piece(names: tuple[str, ...]) -> None:
    app, engine = app_for(Script(pieces=("a",) * 500, step_s=0.005), **named(*names))
    body = {"messages": USER, "stream": True}
    got = asyncio.run(call_asgi(app, "/v1/chat/completions", body, leaves_after=3))
    # Held back, the pieces would come when all 500 are made, and nothing would be left to abort.
    assert len(got) < 50
    assert len(engine.aborted) == 1
    assert app.state.server.admission.num_inside == 0
    short, _ = app_for(**named(*names))
    assert events_of(chat(short, stream=True))[-1] == "[DONE]"


def test_a_client_that_leaves_a_whole_answer_ends_it() -> None:
    app, engine = app_for(Script(pieces=("a",) * 500, step_s=0.005), **named("stamps"))
    asyncio.run(call_asgi(app, "/v1/chat/completions", {"messages": USER}, leaves_after=0))
    assert len(engine.aborted) == 1
    assert app.state.server.admission.num_inside == 0


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("nowhere.to.be.found", 'install what provides "nowhere"'),
        (f"{HERE}.Nothing", "has no"),
        (f"{HERE}.NUMBER", "neither a class nor an async function"),
        (f"{HERE}.plain", "neither a class nor an async function"),
        (f"{HERE}.takes_one", "a function must take request and call_next"),
        (f"{HERE}.Greedy", "a class must take the application alone"),
        ("word", "is not an import path"),
    ],
)
def test_wrong_paths_are_told_at_start(path: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told) as found:
        check_frontend(FrontendConfig(middleware=(f"{HERE}.Stamps", path)))
    assert found.value.where == "--middleware"
    assert found.value.fix

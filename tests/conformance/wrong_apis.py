"""Deliberately wrong families of endpoints: each breaks the one clause that test_kit names."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from pydantic import BaseModel
from starlette.requests import Request

from dovetail.interfaces.api import Api, ApiError, Route
from dovetail.interfaces.plugin import Info


class Word(BaseModel):
    """A word."""

    word: str


async def say(body: Word) -> dict[str, str]:
    """Say a word."""
    return {"word": body.word}


async def mumble(body: Word) -> dict[str, str]:
    return {"word": body.word}


async def show() -> dict[str, str]:
    """Show the last word."""
    return {"word": "last"}


async def guess(request: Request) -> dict[str, str]:
    """Say a word, whatever came."""
    word: str = json.loads(await request.body())["word"]
    return {"word": word}


class RightApi(Api):
    """Nothing is wrong with it."""

    info = Info(summary="says a word")
    routes = (
        Route(method="POST", path="/words", endpoint=say, body=Word),
        Route(method="GET", path="/words/{number}", endpoint=show, is_open=True),
    )


class SlashedApi(Api):
    """Has a path that ends with a slash."""

    info = Info(summary="a slash too many")
    routes = (Route(method="GET", path="/words/", endpoint=show),)


class GreedyApi(Api):
    """Claims a route of dovetail's own."""

    info = Info(summary="claims a path")
    routes = (Route(method="GET", path="/v1/models", endpoint=show),)


class SilentApi(Api):
    """Does not say what its endpoint does."""

    info = Info(summary="says nothing of its endpoint")
    routes = (Route(method="POST", path="/words", endpoint=mumble, body=Word),)


class FlaggedApi(Api):
    """Needs a flag that is not a switch."""

    info = Info(summary="needs a number as a switch")
    routes = (Route(method="GET", path="/words", endpoint=show, flag="port"),)


class OnceApi(Api):
    """Opens its state once."""

    info = Info(summary="opens once")
    routes = (Route(method="GET", path="/words", endpoint=show),)

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self._only = self._opened()

    def state(self, frontend: Any) -> AbstractAsyncContextManager[Any]:
        """Return the one state."""
        return self._only

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[list[str]]:
        yield []


class AjarApi(Api):
    """Answers on a closed path by the endpoint of an open one."""

    info = Info(summary="one endpoint, open and closed")
    routes = (
        Route(method="GET", path="/words", endpoint=show, is_open=True),
        Route(method="GET", path="/secret_words", endpoint=show),
    )


class BodilessApi(Api):
    """Declares a body that its endpoint does not take."""

    info = Info(summary="declares another body")
    routes = (Route(method="POST", path="/words", endpoint=show, body=Word),)


class CrashingApi(Api):
    """Reads a body as if it were always JSON."""

    info = Info(summary="believes every body")
    routes = (Route(method="POST", path="/words", endpoint=guess, body=Word),)


class MuteApi(RightApi):
    """Keeps to itself what is wrong."""

    def error_body(self, status: int, error: ApiError, request_id: str | None) -> bytes:
        """Return the status alone."""
        return json.dumps({"status": status}).encode()

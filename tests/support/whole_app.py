"""An application with a real engine inside the test's own process, and HTTP clients of it: as much
of the server as `dovetail serve` has, less the socket and the processes."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
from fastapi import FastAPI

from support.serving import client_of

LIMIT_S = 120.0


@contextlib.asynccontextmanager
async def served_app(*words: str) -> AsyncIterator[FastAPI]:
    """Give the application that `dovetail serve` makes of these words, and its engine."""
    from dovetail.config.parse.parse_config import parse_config
    from dovetail.config.resolve import resolve
    from dovetail.server.families import choose_apis
    from dovetail.server.launch.startup_timer import StartupTimer
    from dovetail_plugins.batch.whole_app import whole_app
    from dovetail_plugins.commands._serve_flags import add_serve_arguments

    parser = argparse.ArgumentParser()
    add_serve_arguments(parser)
    config = parse_config(parser.parse_args(words))
    made = whole_app(config, resolve(config), config.frontend, choose_apis(config), StartupTimer())
    async with made as (app, _):
        yield app


@contextlib.asynccontextmanager
async def whole_client(model: Path, *flags: str) -> AsyncIterator[httpx.AsyncClient]:
    """Give an HTTP client of a model that is served here, by flags of `dovetail serve`."""
    words = (str(model), *flags, "--disable-frontend-multiprocessing")
    async with served_app(*words) as app, client_of(app) as client:
        client.timeout = httpx.Timeout(LIMIT_S)
        yield client


def by_openai(
    model: Path, *flags: str, work: Callable[[Any, httpx.AsyncClient], Awaitable[None]]
) -> None:
    """Do work with OpenAI's client of a model that is served here, and with the one below it."""
    import openai

    async def main() -> None:
        async with whole_client(model, *flags) as http:
            asked: dict[str, Any] = {"api_key": "none", "max_retries": 0, "http_client": http}
            await work(openai.AsyncOpenAI(base_url="http://test/v1", **asked), http)

    asyncio.run(main())

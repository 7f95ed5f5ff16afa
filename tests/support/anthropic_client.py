"""Anthropic's client of an application, without a socket."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from fastapi import FastAPI

anthropic = pytest.importorskip("anthropic")
httpx2 = pytest.importorskip("httpx2")


@contextlib.asynccontextmanager
async def anthropic_of(app: FastAPI, key: str = "k") -> AsyncIterator[Any]:
    """Give the client of an application."""
    transport = httpx2.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=transport, timeout=20) as http:
        yield anthropic.AsyncAnthropic(
            api_key=key, base_url="http://test", http_client=http, max_retries=0
        )


def with_anthropic(app: FastAPI, work: Callable[[Any], Awaitable[Any]], key: str = "k") -> Any:
    """Return what `work` returns, given a client of the application."""

    async def main() -> Any:
        async with anthropic_of(app, key) as client:
            return await work(client)

    return asyncio.run(main())

"""A server of batches in this process, and what its openai client does with them."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from dovetail.config.sections.frontend import FrontendConfig
from dovetail.server.app import build_app
from dovetail.server.families import build_apis, opened_apis
from dovetail_testing.fakes.async_engine import FakeAsyncEngine
from support.serving import PARSERS, client_of

openai = pytest.importorskip("openai")
COMPLETIONS = "/v1/completions"


def lines(*bodies: dict[str, Any], url: str = COMPLETIONS) -> bytes:
    rows = [
        {"custom_id": f"line-{place}", "method": "POST", "url": url, "body": body}
        for place, body in enumerate(bodies)
    ]
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


@contextlib.asynccontextmanager
async def serving(
    folder: Path, engine: FakeAsyncEngine, key: str = "k", **frontend: Any
) -> AsyncIterator[Any]:
    """Give the openai client of a server whose files lie in the folder."""
    flags = FrontendConfig(file_storage=str(folder), **frontend)
    async with opened_apis(build_apis(), flags) as apis:
        app = build_app(engine, flags, apis, parsers=PARSERS)  # type: ignore[arg-type]
        async with client_of(app) as http:
            yield openai.AsyncOpenAI(
                api_key=key, base_url="http://test/v1", http_client=http, max_retries=0
            )


async def uploaded(client: Any, data: bytes) -> Any:
    return await client.files.create(file=("in.jsonl", io.BytesIO(data)), purpose="batch")


async def begun(client: Any, data: bytes, endpoint: Any = COMPLETIONS) -> Any:
    file = await uploaded(client, data)
    return await client.batches.create(
        input_file_id=file.id, endpoint=endpoint, completion_window="24h", metadata={"a": "b"}
    )


async def ended(client: Any, batch: Any) -> Any:
    async with asyncio.timeout(15):
        while batch.status in ("validating", "in_progress", "finalizing", "cancelling"):
            await asyncio.sleep(0.02)
            batch = await client.batches.retrieve(batch.id)
    return batch


async def results(client: Any, file_id: str) -> dict[str, Any]:
    text = (await client.files.content(file_id)).text
    return {row["custom_id"]: row for row in map(json.loads, text.splitlines())}

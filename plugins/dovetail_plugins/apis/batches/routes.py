"""/v1/files and /v1/batches, if --file-storage is set.

Source: the OpenAI API reference, files and batches.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from fastapi import Depends, Request
from starlette.responses import FileResponse, JSONResponse

from dovetail.config.sections.frontend import FrontendConfig
from dovetail.errors import NotFound, RequestError
from dovetail.interfaces.api import Api, Route
from dovetail.interfaces.plugin import Info
from dovetail.observability.supervise import supervised
from dovetail.server.endpoint import Body, Metadata, ServerOf, owner_of, state_of
from dovetail_plugins.apis.batches.multipart import parts_of
from dovetail_plugins.apis.batches.runner import BatchRunner
from dovetail_plugins.apis.batches.storage import FileStorage

logger = logging.getLogger("dovetail_plugins.batch")
MAX_PAGE = 100
ENDPOINTS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/embeddings",
    "/v1/score",
    "/v1/rerank",
    "/v2/rerank",
    "/classify",
    "/pooling",
)


class NewBatch(Body):
    """A request to answer the lines of a file."""

    input_file_id: str
    endpoint: str
    completion_window: Literal["24h"]
    metadata: Metadata | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchState:
    """The folder and the runner of its batches."""

    storage: FileStorage
    runner: BatchRunner


BatchesOf = Annotated[BatchState, Depends(state_of(BatchState))]


async def upload_file(request: Request, state: BatchesOf) -> Any:
    """Store a file: a form with the fields file and purpose."""
    raw = await request.body()
    parts = parts_of(request.headers.get("content-type", ""), raw)
    if "file" not in parts:
        raise RequestError("is missing.", where="file")
    purpose = parts["purpose"].data.decode("utf-8", "replace") if "purpose" in parts else ""
    if purpose != "batch":
        raise RequestError('must be "batch"; files serve nothing else here.', where="purpose")
    owner, data = owner_of(request), parts["file"].data
    facts = state.storage.new_file(owner, parts["file"].filename or "file", purpose)
    with storing():
        await asyncio.to_thread(state.storage.add_file, facts, data)
    return JSONResponse(facts.to_json())


async def list_files(request: Request, state: BatchesOf) -> Any:
    """Return the files of this key, newest first, a page at a time."""
    found = await asyncio.to_thread(state.storage.files, owner_of(request))
    purpose = request.query_params.get("purpose")
    return _page([one.to_json() for one in found if purpose in (None, one.purpose)], request)


async def get_file(file_id: str, request: Request, state: BatchesOf) -> Any:
    """Return the metadata of a file."""
    return JSONResponse(state.storage.file(file_id, owner_of(request)).to_json())


async def get_file_content(file_id: str, request: Request, state: BatchesOf) -> Any:
    """Return the bytes of a file."""
    facts = state.storage.file(file_id, owner_of(request))
    path = state.storage.content(facts.id)
    return FileResponse(path, media_type="application/octet-stream")


async def delete_file(file_id: str, request: Request, state: BatchesOf) -> Any:
    """Delete a file that no open batch needs."""
    owner = owner_of(request)
    facts = state.storage.file(file_id, owner)
    for batch in await asyncio.to_thread(state.storage.batches, owner):
        names = (batch.input_file_id, batch.output_file_id, batch.error_file_id)
        if batch.is_open and facts.id in names:
            raise RequestError(
                f"{batch.id} still needs it.", where="file_id", fix="cancel the batch first."
            )
    state.storage.drop_file(facts.id)
    return JSONResponse({"id": facts.id, "object": "file", "deleted": True})


async def create_batch(body: NewBatch, request: Request, server: ServerOf, state: BatchesOf) -> Any:
    """Answer every request of a file, in addition to live traffic and with lower priority."""
    server.fields.check(body, is_answered=False)
    if body.endpoint not in ENDPOINTS:
        raise RequestError(f"must be one of {', '.join(ENDPOINTS)}.", where="endpoint")
    owner = owner_of(request)
    facts = state.storage.file(body.input_file_id, owner, "input_file_id")
    with storing():
        await asyncio.to_thread(state.storage.check_new_batch, owner)
        batch = await asyncio.to_thread(
            state.storage.new_batch, owner, body.endpoint, facts.id, body.metadata
        )
    state.runner.has_news.set()
    return JSONResponse(batch.to_json())


async def list_batches(request: Request, state: BatchesOf) -> Any:
    """Return the batches of this key, newest first, a page at a time."""
    found = await asyncio.to_thread(state.storage.batches, owner_of(request))
    return _page([one.to_json() for one in found], request)


async def get_batch(batch_id: str, request: Request, state: BatchesOf) -> Any:
    """Return a batch and its progress."""
    return JSONResponse(state.storage.batch(batch_id, owner_of(request)).to_json())


async def cancel_batch(batch_id: str, request: Request, state: BatchesOf) -> Any:
    """Cancel a batch. The results written so far are saved."""
    batch = state.storage.batch(batch_id, owner_of(request))
    if batch.is_open:
        with storing():
            await asyncio.to_thread(state.storage.cancel, batch)
        batch.status = "cancelling"
    return JSONResponse(batch.to_json())


@contextmanager
def storing() -> Iterator[None]:
    """Report disk errors of the block as RequestError. Raises: RequestError"""
    try:
        yield
    except OSError as error:
        logger.error("the folder of --file-storage takes nothing: %s", error)
        raise RequestError(
            f"the server cannot store this now: {error.strerror}.",
            fix="try again later.",
            code="storage_unavailable",
            status=507,
        ) from error


def _page(found: Sequence[dict[str, Any]], request: Request) -> JSONResponse:
    """Return a page of a list. Raises: RequestError, NotFound"""
    limit = request.query_params.get("limit", "20")
    if not limit.isdecimal() or not 1 <= int(limit[:9]) <= 10_000:
        raise RequestError("must be 1 to 10000.", where="limit")
    after, start = request.query_params.get("after"), 0
    if after is not None:
        places = [place for place, one in enumerate(found) if one["id"] == after]
        if not places:
            raise NotFound(f'there is no "{after[:128]}".', where="after")
        start = places[0] + 1
    page = list(found[start : start + int(limit)])
    return JSONResponse(
        {
            "object": "list",
            "data": page,
            "first_id": page[0]["id"] if page else None,
            "last_id": page[-1]["id"] if page else None,
            "has_more": start + len(page) < len(found),
        }
    )


def _routes() -> Sequence[Route]:
    rows: tuple[tuple[Any, str, Any, type[Any] | None], ...] = (
        ("POST", "/v1/files", upload_file, None),
        ("GET", "/v1/files", list_files, None),
        ("GET", "/v1/files/{file_id}", get_file, None),
        ("GET", "/v1/files/{file_id}/content", get_file_content, None),
        ("DELETE", "/v1/files/{file_id}", delete_file, None),
        ("POST", "/v1/batches", create_batch, NewBatch),
        ("GET", "/v1/batches", list_batches, None),
        ("GET", "/v1/batches/{batch_id}", get_batch, None),
        ("POST", "/v1/batches/{batch_id}/cancel", cancel_batch, None),
    )
    return [
        Route(method=method, path=path, endpoint=endpoint, body=body, flag="file_storage")
        for method, path, endpoint, body in rows
    ]


class BatchesApi(Api):
    """OpenAI's files and batches."""

    info = Info(summary="files and batches of the OpenAI API", source="the OpenAI API reference")
    routes = _routes()

    @asynccontextmanager
    async def state(self, frontend: FrontendConfig) -> AsyncIterator[BatchState | None]:
        """Yield the folder while its batches run. Raises: ConfigError"""
        if frontend.file_storage is None:
            yield None
            return
        storage = FileStorage(frontend.file_storage, frontend.file_storage_quota)
        runner = BatchRunner(storage, frontend.max_body_bytes, frontend.api_key)
        task = supervised("batches", runner.run)
        try:
            yield BatchState(storage=storage, runner=runner)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def bound(self, app: Any, state: Any) -> None:
        """Make this application answer the batches. Mutates: state"""
        if state is not None:
            state.runner.app = app

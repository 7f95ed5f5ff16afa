"""/v1/messages/batches, if --file-storage is set: Anthropic's batches, as batches of /v1/messages.

A batch is stored and run like one of OpenAI's: its requests are the lines of an input file. Only
what clients send and see differs. Source: the Anthropic API reference, message batches.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import msgspec
from fastapi import Request
from pydantic import Field
from starlette.responses import JSONResponse, StreamingResponse

from dovetail.errors import NotFound, RequestError
from dovetail.interfaces.api import Api, Route
from dovetail.interfaces.plugin import Info
from dovetail.json_values import json_struct
from dovetail.server.endpoint import Body, ServerOf, owner_of
from dovetail_plugins.apis._anthropic_lists import page_of, time_of
from dovetail_plugins.apis.batches.answer import ResultLine
from dovetail_plugins.apis.batches.lines import Line, custom_id_of
from dovetail_plugins.apis.batches.routes import BatchesOf, BatchState, storing
from dovetail_plugins.apis.batches.storage import BatchFacts, FileStorage

ENDPOINT = "/v1/messages"
ROOT = "/v1/messages/batches"
OWN, STORED = "msgbatch_", "batch_"
"""How ids begin for clients, and in the storage."""
PURPOSE = "message_batch"
"""The purpose of an input file that belongs to its batch."""
MAX_REQUESTS = 100_000
MAX_ID_CHARS = 64
STATES = {"cancelling": "canceling", "completed": "ended", "failed": "ended", "expired": "ended"}
STATES |= {"cancelled": "ended"}
"""Status of a batch -> Anthropic's; others are in_progress."""


class BatchItem(Body):
    """One request: the body of a message, and the client's name for it."""

    custom_id: Annotated[str, Field(min_length=1, max_length=MAX_ID_CHARS)]
    params: dict[str, Any]


class NewMessageBatch(Body):
    """A request to answer several messages."""

    requests: Annotated[list[BatchItem], Field(min_length=1, max_length=MAX_REQUESTS)]


async def create_message_batch(
    body: NewMessageBatch, request: Request, server: ServerOf, state: BatchesOf
) -> Any:
    """Answer every message of a batch, in addition to live traffic and with lower priority."""
    server.fields.check(body, is_answered=False)
    lines = await asyncio.to_thread(_lines, body.requests)
    owner, storage = owner_of(request), state.storage
    facts = storage.new_file(owner, "requests.jsonl", PURPOSE)
    with storing():
        await asyncio.to_thread(storage.check_new_batch, owner)
        await asyncio.to_thread(storage.add_file, facts, lines)
        batch = await asyncio.to_thread(storage.new_batch, owner, ENDPOINT, facts.id, None)
    state.runner.has_news.set()
    return _shown(batch, request, storage)


async def list_message_batches(request: Request, state: BatchesOf) -> Any:
    """Return the batches of this key, newest first, a page at a time."""
    found = await asyncio.to_thread(state.storage.batches, owner_of(request))
    mine = [_to_json(one, request, state.storage) for one in found if one.endpoint == ENDPOINT]
    return JSONResponse(page_of(mine, request.query_params))


async def get_message_batch(batch_id: str, request: Request, state: BatchesOf) -> Any:
    """Return a batch and its progress."""
    return _shown(_found(batch_id, request, state), request, state.storage)


async def cancel_message_batch(batch_id: str, request: Request, state: BatchesOf) -> Any:
    """Cancel a batch. The results written so far are saved."""
    batch = _found(batch_id, request, state)
    if batch.is_open:
        with storing():
            await asyncio.to_thread(state.storage.cancel, batch)
        batch.status = "cancelling"
    return _shown(batch, request, state.storage)


async def delete_message_batch(batch_id: str, request: Request, state: BatchesOf) -> Any:
    """Delete a batch that has ended, with its requests and results."""
    batch = _found(batch_id, request, state)
    if batch.is_open:
        raise RequestError("it has not ended.", where="message_batch_id", fix="cancel it first.")
    with storing():
        await asyncio.to_thread(_drop, batch, state.storage)
    return JSONResponse({"id": batch_id, "type": "message_batch_deleted"})


async def get_message_batch_results(batch_id: str, request: Request, state: BatchesOf) -> Any:
    """Return the results of a batch that has ended, one JSON object a line."""
    batch = _found(batch_id, request, state)
    if batch.is_open:
        raise RequestError(
            "it has not ended.",
            where="message_batch_id",
            fix="wait until processing_status is ended.",
        )
    return StreamingResponse(_results(batch, state.storage), media_type="application/x-jsonl")


def _lines(requests: Sequence[BatchItem]) -> bytes:
    """Return the requests as lines of a batch's input. Raises: RequestError"""
    seen: set[str] = set()
    lines = []
    for number, one in enumerate(requests):
        if one.custom_id in seen:
            raise RequestError("another request has it.", where=f"requests[{number}].custom_id")
        if one.params.get("stream"):
            raise RequestError(
                "a batch has whole answers.",
                where=f"requests[{number}].params.stream",
                fix="leave it out.",
            )
        seen.add(one.custom_id)
        row = {"custom_id": one.custom_id, "method": "POST", "url": ENDPOINT, "body": one.params}
        lines.append(json.dumps(row))
    return ("\n".join(lines) + "\n").encode()


def _found(batch_id: str, request: Request, state: BatchState) -> BatchFacts:
    """Return a batch of this key. Raises: NotFound"""
    if batch_id.startswith(OWN):
        batch = state.storage.batch(STORED + batch_id.removeprefix(OWN), owner_of(request))
        if batch.endpoint == ENDPOINT:
            return batch
    raise NotFound(f'there is no batch "{batch_id[:128]}".', where="message_batch_id")


def _shown(batch: BatchFacts, request: Request, storage: FileStorage) -> JSONResponse:
    return JSONResponse(_to_json(batch, request, storage))


def _to_json(batch: BatchFacts, request: Request, storage: FileStorage) -> dict[str, Any]:
    """Return Anthropic's batch object."""
    own_id = OWN + batch.id.removeprefix(STORED)
    ended_s = None if batch.is_open else batch.times.get(f"{batch.status}_at", batch.created_at)
    cancelled_s = storage.cancelled_at(batch)
    return {
        "id": own_id,
        "type": "message_batch",
        "processing_status": STATES.get(batch.status, "in_progress"),
        "request_counts": _counts(batch, storage),
        "created_at": time_of(batch.created_at),
        "expires_at": time_of(batch.expires_at),
        "ended_at": None if ended_s is None else time_of(ended_s),
        "cancel_initiated_at": None if cancelled_s is None else time_of(cancelled_s),
        "archived_at": None,
        "results_url": None if batch.is_open else f"{request.base_url}{ROOT[1:]}/{own_id}/results",
    }


def _counts(batch: BatchFacts, storage: FileStorage) -> dict[str, int]:
    """Return how many requests ended how; they count as processing until all have ended."""
    total = batch.total or _num_lines(batch, storage)
    counts = dict.fromkeys(("processing", "succeeded", "errored", "canceled", "expired"), 0)
    if batch.is_open:
        return counts | {"processing": total}
    counts |= {"succeeded": batch.completed, "errored": batch.failed}
    counts[_unanswered(batch)] += total - batch.completed - batch.failed
    return counts


def _num_lines(batch: BatchFacts, storage: FileStorage) -> int:
    path = storage.content(batch.input_file_id)
    return path.read_bytes().count(b"\n") if path.exists() else 0


def _unanswered(batch: BatchFacts) -> str:
    """Return the kind of result of requests that were not answered."""
    return {"cancelled": "canceled", "expired": "expired"}.get(batch.status, "errored")


def _results(batch: BatchFacts, storage: FileStorage) -> Iterator[bytes]:
    """Yield the result of every request."""
    answered: set[str | None] = set()
    for file_id in (batch.output_file_id, batch.error_file_id):
        for line in _rows(storage, file_id):
            one = json_struct(line, ResultLine)
            if one.custom_id not in answered:
                answered.add(one.custom_id)
                yield _row(one.custom_id, _result(one))
    for line in _rows(storage, batch.input_file_id):
        custom_id = custom_id_of(Line(number=0, raw=line, is_whole=True))
        if custom_id not in answered:
            yield _row(custom_id, _rest(batch))


def _rows(storage: FileStorage, file_id: str | None) -> Iterator[bytes]:
    path = storage.content(file_id) if file_id else None
    if path is not None and path.exists():
        with path.open("rb") as file:
            yield from filter(None, map(bytes.strip, file))


def _row(custom_id: str | None, result: dict[str, Any]) -> bytes:
    return msgspec.json.encode({"custom_id": custom_id, "result": result}) + b"\n"


def _result(one: ResultLine) -> dict[str, Any]:
    """Return the result of an answered request. The route's own error body is Anthropic's."""
    if one.response is None:
        message = one.error.message if one.error else "no answer."
        return {"type": "errored", "error": _error("invalid_request_error", message)}
    if one.is_failed:
        return {"type": "errored", "error": one.response.body}
    return {"type": "succeeded", "message": one.response.body}


def _rest(batch: BatchFacts) -> dict[str, Any]:
    """Return the result of a request that was not answered."""
    kind = _unanswered(batch)
    if kind != "errored":
        return {"type": kind}
    why = batch.faults[0].message if batch.faults else "the batch failed."
    return {"type": "errored", "error": _error("api_error", why)}


def _error(kind: str, message: str) -> dict[str, Any]:
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": None}


def _drop(batch: BatchFacts, storage: FileStorage) -> None:
    """Delete a batch and its files, but not an input file that a client uploaded."""
    for file_id in (batch.output_file_id, batch.error_file_id):
        if file_id is not None:
            storage.drop_file(file_id)
    if any(one.id == batch.input_file_id for one in storage.files(batch.owner, PURPOSE)):
        storage.drop_file(batch.input_file_id)
    storage.drop_batch(batch)


def _routes() -> Sequence[Route]:
    one = f"{ROOT}/{{batch_id}}"
    rows: tuple[tuple[Any, str, Any, type[Any] | None], ...] = (
        ("POST", ROOT, create_message_batch, NewMessageBatch),
        ("GET", ROOT, list_message_batches, None),
        ("GET", one, get_message_batch, None),
        ("DELETE", one, delete_message_batch, None),
        ("POST", f"{one}/cancel", cancel_message_batch, None),
        ("GET", f"{one}/results", get_message_batch_results, None),
    )
    return [
        Route(method=method, path=path, endpoint=endpoint, body=body, flag="file_storage")
        for method, path, endpoint, body in rows
    ]


class MessageBatchesApi(Api):
    """Anthropic's batches of messages. The family of files and batches runs them."""

    info = Info(summary="batches of the Anthropic API", source="the Anthropic API reference")
    routes = _routes()

"""DisaggregatedRouter: one server computes the prompt, another generates the answer.

The servers have a KV connector. A `prefill` server gets each request first, for one token, and
returns how another server can continue (kv_transfer_params). Then a `decode` server gets the
request with these params, and its answer goes to the client. If the first half fails, only time is
lost: the decode server computes the prompt itself. A client that leaves aborts the current half.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from dovetail.json_values import InvalidJson, json_value
from dovetail.server.http.errors import problem
from dovetail.server.http.middleware import REQUEST_ID
from dovetail_plugins.gateway.forward import EVENT_STREAM, OF_THE_CONNECTION
from dovetail_plugins.gateway.prefill_choice import PrefillChoice
from dovetail_plugins.gateway.upstream import Upstream, least_busy
from dovetail_plugins.http_client.response import Header, StreamedResponse

logger = logging.getLogger("dovetail.route")

HEALTH = "/health"
DIVIDED_PATHS = frozenset({"/v1/chat/completions", "/v1/completions"})
FIELD = "kv_transfer_params"
ASKED = {"do_remote_decode": True, "do_remote_prefill": False}
WHOLE = ("prompt_logprobs", "use_beam_search", "echo", "suffix")
"""Fields that require prompt and answer to be computed on the same server."""
OF_THE_ANSWER = ("stream_options", "min_tokens", "best_of", "logprobs", "top_logprobs", "n")
"""Fields that are meaningless to the first half, and could contradict its single token."""
RETURNED_ANEW = OF_THE_CONNECTION | {b"date", b"server", REQUEST_ID.encode()}
"""Headers of a server's answer that this process sets itself."""
PREFILL_HEADER = b"x-dovetail-prefill"


class DisaggregatedRouter:
    """An ASGI endpoint over the two kinds of servers. `route_app` adds the surrounding layers."""

    def __init__(
        self,
        prefill: Sequence[Upstream],
        decode: Sequence[Upstream],
        choice: PrefillChoice | None = None,
    ) -> None:
        self._prefill = prefill
        self._choice = choice or PrefillChoice(prefill, None, None)
        self._decode = decode

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        body = await Request(scope, receive).body()
        disconnected = asyncio.ensure_future(_disconnected(receive))
        work = asyncio.ensure_future(self._answer(scope, body, send))
        try:
            await asyncio.wait((disconnected, work), return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                await work
        finally:
            disconnected.cancel()
            work.cancel()
            await asyncio.gather(disconnected, work, return_exceptions=True)

    @property
    def is_busy(self) -> bool:
        """Return whether any server has an open request."""
        return any(one.num_open for one in (*self._prefill, *self._decode))

    async def health(self, request: Request | None = None) -> JSONResponse:
        """Return each server's state; 503 if no decode server is healthy."""
        del request
        report: dict[str, list[dict[str, Any]]] = {}
        for name, servers in (("prefill", self._prefill), ("decode", self._decode)):
            states = await asyncio.gather(*(one.is_healthy() for one in servers))
            report[name] = [
                {"url": one.url, "healthy": ok, "open": one.num_open, "failures": one.num_failures}
                for one, ok in zip(servers, states, strict=True)
            ]
        is_up = any(one["healthy"] for one in report["decode"])
        return JSONResponse(report, status_code=200 if is_up else 503)

    async def _answer(self, scope: Scope, body: bytes, send: Send) -> None:
        headers = _headers_on(scope)
        fields = _divided(scope, body)
        first = None
        if fields is not None:
            params, refusal, first = await self._run_prefill(scope, headers, fields)
            if refusal is not None:
                await _send_whole(send, *refusal)
                return
            if params is not None:
                body = json.dumps(fields | {FIELD: params}).encode()
        await self._run_decode(scope, headers, body, send, first)

    async def _run_prefill(
        self, scope: Scope, headers: list[Header], fields: dict[str, Any]
    ) -> tuple[Any, tuple[int, list[Header], bytes] | None, Upstream | None]:
        """Compute the prompt; return (params to continue with or None, the refusal of an invalid
        request, the server that computed it)."""
        prefill_fields = {
            name: value for name, value in fields.items() if name not in OF_THE_ANSWER
        }
        prefill_fields |= {"max_tokens": 1, "stream": False, FIELD: ASKED}
        if "max_completion_tokens" in prefill_fields:
            prefill_fields["max_completion_tokens"] = 1
        body, tried = json.dumps(prefill_fields).encode(), list[Upstream]()
        prompt_ids = await self._choice.tokens_of(fields, headers)
        salt = str(fields.get("cache_salt") or "")
        while (server := self._choice.pick(prompt_ids, salt, tried)) is not None:
            tried.append(server)
            self._choice.began(server, len(prompt_ids))
            try:
                async with server.stream("POST", _target(scope), headers, body) as answer:
                    whole = await answer.read()
            except ConnectionError as error:
                server.failed()
                logger.warning("%s: the prefill server cannot be reached: %s", server.url, error)
                continue
            finally:
                self._choice.ended(server, len(prompt_ids))
            if 400 <= answer.status < 500 and answer.status != 429:
                return None, (answer.status, answer.headers, whole), None
            if answer.status == 200:
                params = _params_of(whole)
                return params, None, server if params else None
            logger.warning("%s: the prefill server answered %d", server.url, answer.status)
        return None, None, None

    async def _run_decode(
        self,
        scope: Scope,
        headers: list[Header],
        body: bytes,
        send: Send,
        first: Upstream | None,
    ) -> None:
        """Forward the request and stream its answer back."""
        tried: list[Upstream] = []
        while (server := least_busy(self._decode, tried)) is not None:
            tried.append(server)
            has_begun = False
            try:
                target = _target(scope)
                async with server.stream(scope["method"], target, headers, body) as answer:
                    has_begun = True
                    await _pass_back(answer, send, first)
                return
            except ConnectionError as error:
                server.failed()
                logger.warning("%s: the decode server cannot be reached: %s", server.url, error)
                if has_begun:
                    raise
        refusal = problem(503, "no decode server can be reached.", kind="unavailable").response(
            scope
        )
        await _send_whole(send, 503, refusal.raw_headers, bytes(refusal.body))


def _params_of(whole: bytes) -> Any:
    """Return the transfer params in an answer, None if there are none."""
    try:
        answer = json_value(whole)
    except InvalidJson:
        return None
    return answer.get(FIELD) if isinstance(answer, dict) else None


def _divided(scope: Scope, body: bytes) -> dict[str, Any] | None:
    """Return the fields of a request with a prompt to compute on another server; None for
    others."""
    if scope["method"] != "POST" or scope["path"] not in DIVIDED_PATHS:
        return None
    try:
        fields = json_value(body)
        json.dumps(fields, allow_nan=False)
    except (ValueError, RecursionError):  # no server would get these as the client wrote them
        return None
    if not isinstance(fields, dict) or any(fields.get(name) for name in WHOLE):
        return None
    prompt = fields.get("prompt")
    is_several = isinstance(prompt, list) and any(not isinstance(one, int) for one in prompt)
    return None if is_several or fields.get(FIELD) else fields


def _target(scope: Scope) -> bytes:
    path, query = scope.get("raw_path") or scope["path"].encode(), scope["query_string"]
    return bytes(path + b"?" + query if query else path)


def _headers_on(scope: Scope) -> list[Header]:
    """Return the request's headers for servers, with a request id that all of them share."""
    dropped = OF_THE_CONNECTION | {b"content-length", b"host", b"origin", REQUEST_ID.encode()}
    headers = [(name, value) for name, value in scope["headers"] if name not in dropped]
    return [*headers, (REQUEST_ID.encode(), scope["state"]["request_id"].encode())]


async def _disconnected(receive: Receive) -> None:
    """Return when the client has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        continue


async def _send_whole(send: Send, status: int, headers: Sequence[Header], body: bytes) -> None:
    dropped = RETURNED_ANEW | {b"content-length"}
    sent_headers = [(name, value) for name, value in headers if name not in dropped]
    sent_headers.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": sent_headers})
    await send({"type": "http.response.body", "body": body})


async def _pass_back(answer: StreamedResponse, send: Send, first: Upstream | None) -> None:
    """Send an answer to the client piece by piece. Raises: ConnectionError"""
    headers = [(name, value) for name, value in answer.headers if name not in RETURNED_ANEW]
    if first is not None:
        headers.append((PREFILL_HEADER, first.url.encode()))
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    try:
        async for piece in answer.pieces():
            await send({"type": "http.response.body", "body": piece, "more_body": True})
    except ConnectionError as error:
        if not dict(headers).get(b"content-type", b"").startswith(EVENT_STREAM):
            raise
        logger.error("a decode server ended within an answer: %s", error)
        message = problem(502, "the decode server ended within the answer.").body()
        last = b"\n\ndata: " + message + b"\n\ndata: [DONE]\n\n"
        await send({"type": "http.response.body", "body": last, "more_body": False})
        return
    await send({"type": "http.response.body", "body": b"", "more_body": False})

"""Answers one line of a batch with the routes of this process, and writes its result as a line.

Format of a result: OpenAI's batch output, {"id", "custom_id", "response": {"status_code",
"request_id", "body"} or null, "error": {"code", "message"} or null}. Source:
https://platform.openai.com/docs/api-reference/batch/request-output
"""

from __future__ import annotations

import logging

import msgspec

from dovetail.server.endpoint import unsupported_route
from dovetail_plugins.apis.batches.call import Caller
from dovetail_plugins.apis.batches.lines import BadLine, Line, parse

logger = logging.getLogger("dovetail_plugins.batch")


class RouteAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of a route."""

    status_code: int
    request_id: str
    body: msgspec.Raw


class LineFault(msgspec.Struct, frozen=True, kw_only=True):
    """Why a line never reached a route, or why the route's answer cannot be stored."""

    code: str
    message: str


class ResultLine(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the output."""

    id: str
    custom_id: str | None
    response: RouteAnswer | None = None
    error: LineFault | None = None

    @property
    def is_failed(self) -> bool:
        """Return whether the request failed."""
        return self.response is None or self.response.status_code >= 400


async def answer(line: Line, name: str, custom_id: str | None, caller: Caller) -> ResultLine:
    """Return the result of one line, even if the line is invalid."""
    try:
        request = parse(line)
        if not caller.takes(request.url):
            raise _no_route(request.url)
        status, body = await caller.post(request.url, bytes(request.body), name)
        reply = RouteAnswer(status_code=status, request_id=name, body=_json(status, body))
    except BadLine as error:
        logger.info("line %d: %s", line.number, error)
        fault = LineFault(code=error.code, message=f"line {line.number}: {error}")
        return ResultLine(id=name, custom_id=custom_id, error=fault)
    return ResultLine(id=name, custom_id=custom_id, response=reply)


def _no_route(url: str) -> BadLine:
    sentence = unsupported_route(url)
    if sentence is not None:
        return BadLine("not_supported", f"url: {sentence}")
    return BadLine("invalid_url", f"url: no route takes POST at {url[:256]!r}.")


def _json(status: int, body: bytes) -> msgspec.Raw:
    """Return an answer's body on one line; plain text (a transcript, subtitles) as a JSON string.
    Raises: BadLine for a body that is neither"""
    if not body:
        return msgspec.Raw(b"null")
    try:
        return msgspec.Raw(msgspec.json.format(body, indent=-1))
    except msgspec.DecodeError:
        return _text(status, body)


def _text(status: int, body: bytes) -> msgspec.Raw:
    try:
        return msgspec.Raw(msgspec.json.encode(body.decode()))
    except UnicodeDecodeError as error:
        what = f"the route answered {status} with something that is neither JSON nor text."
        raise BadLine("answer_is_no_json", what) from error

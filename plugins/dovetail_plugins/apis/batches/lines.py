"""The lines of a batch input: read one by one, identified and validated.

Format of a line: OpenAI's batch input, {"custom_id", "method": "POST", "url": "/v1/...", "body"}.
Source: https://platform.openai.com/docs/api-reference/batch/request-input
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from dovetail.errors import ConfigError
from dovetail.json_values import InvalidJson, WrongShape, json_struct

ID_PREFIX = "batch_req_"
ID_BYTES = 16
BOM = b"\xef\xbb\xbf"
ROOM_BYTES = 64 * 1024
"""The maximum size of a line in addition to its body."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One nonblank line. `is_whole` is False if the line exceeded the size limit."""

    number: int
    raw: bytes
    is_whole: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """The number of lines of an input."""

    num_lines: int
    num_answered: int
    num_failed: int


class BatchRequest(msgspec.Struct, frozen=True):
    """A valid line."""

    custom_id: str
    method: str
    url: str
    body: msgspec.Raw


class _Named(msgspec.Struct, frozen=True):
    custom_id: str


class _Body(msgspec.Struct, frozen=True):
    stream: Any = None


class BadLine(Exception):
    """An invalid line. `code` is a word, the text one sentence."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def read_lines(path: Path, max_bytes: int) -> Iterator[Line]:
    """Yield the nonblank lines; at most `max_bytes` of each are held in memory."""
    with path.open("rb") as file:
        number = 0
        while raw := file.readline(max_bytes + 1):
            number += 1
            is_whole = len(raw) <= max_bytes or raw.endswith(b"\n")
            if not is_whole:
                _skip_line(file, max_bytes)
            raw = raw.removeprefix(BOM) if number == 1 else raw
            if raw.strip():
                yield Line(number=number, raw=raw.strip(), is_whole=is_whole)


def _skip_line(file: BinaryIO, max_bytes: int) -> None:
    while (rest := file.readline(max_bytes)) and not rest.endswith(b"\n"):
        continue


def custom_id_of(line: Line) -> str | None:
    """Return the line's custom_id; None if it has none or is unreadable."""
    try:
        return json_struct(line.raw, _Named).custom_id if line.is_whole else None
    except InvalidJson:
        return None


def name_of(custom_id: str) -> str:
    """Return the id of the result for a custom_id, which is the same in every run."""
    return _name(b"custom_id", custom_id.encode())


def name_of_line(line: Line, custom_id: str | None) -> str:
    """Return the id of a line's result. Without a custom_id it is made from the line's number and
    content."""
    if custom_id is not None:
        return name_of(custom_id)
    return _name(b"line", b"%d:" % line.number + line.raw)


def _name(purpose: bytes, content: bytes) -> str:
    return ID_PREFIX + hashlib.blake2b(content, digest_size=ID_BYTES, person=purpose).hexdigest()


def scan(path: Path, max_bytes: int, answered: Collection[str], failed: Collection[str]) -> Scan:
    """Return the number of lines, how many have a result, and how many of these are errors.

    Raises: ConfigError if two lines have the same custom_id
    """
    seen: set[bytes] = set()
    counts = [0, 0, 0]
    for line in read_lines(path, max_bytes):
        custom_id = custom_id_of(line)
        name = name_of_line(line, custom_id)
        digest = bytes.fromhex(name.removeprefix(ID_PREFIX))
        if custom_id is not None and digest in seen:
            raise _doubled(path, max_bytes, custom_id, line.number)
        seen.add(digest)
        counts[0] += 1
        counts[1] += name in answered
        counts[2] += name in failed
    return Scan(num_lines=counts[0], num_answered=counts[1], num_failed=counts[2])


def _doubled(path: Path, max_bytes: int, custom_id: str, number: int) -> ConfigError:
    lines = read_lines(path, max_bytes)
    first = next(line.number for line in lines if custom_id_of(line) == custom_id)
    return ConfigError(
        f"lines {first} and {number} have the same custom_id {custom_id[:256]!r}.",
        where="--input-file",
        fix="give every line a different custom_id.",
    )


def parse(line: Line) -> BatchRequest:
    """Return the request of a line. Raises: BadLine"""
    if not line.is_whole:
        raise BadLine("line_too_long", "the line is longer than --max-body-bytes allows.")
    try:
        request = json_struct(line.raw, BatchRequest)
    except WrongShape as error:
        raise BadLine("invalid_request", f"the line is not a request: it {error}") from error
    except InvalidJson as error:
        raise BadLine("invalid_json", f"the line {error}") from error
    if request.method != "POST":
        raise BadLine("invalid_method", f"method: must be POST, not {request.method[:64]!r}.")
    _check_body(request.body)
    return request


def _check_body(body: msgspec.Raw) -> None:
    try:
        is_stream = bool(json_struct(body, _Body).stream)
    except InvalidJson as error:
        raise BadLine("invalid_body", "body: must be a JSON object.") from error
    if is_stream:
        raise BadLine("stream_in_batch", "body.stream: a batch has whole answers; leave it out.")

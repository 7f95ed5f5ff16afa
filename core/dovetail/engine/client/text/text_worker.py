"""The process that reads long texts: parses large bodies and tokenizes long prompts, one job at a
time, at a lower priority than running streams.

A job and a report are each a length-prefixed msgpack head followed by the number of raw bytes in
the head. Between the parts of a huge text the process reports its working time and waits for its
parent. Only the parent knows whether others need the processor, and that may change.
"""

from __future__ import annotations

import os
import sys
import time
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO

import msgspec

from dovetail.engine.client.requests.input_processor import load_tokenizer
from dovetail.engine.client.requests.prompt_checks import verify_text
from dovetail.engine.client.text.long_text import Rest, encoded, no_rest, too_many_chars
from dovetail.errors import RequestError
from dovetail.interfaces.data.spec import EngineSpec
from dovetail.interfaces.tokenizer import Tokenizer
from dovetail.json_values import InvalidJson, body_fault, json_value
from dovetail.processes import process

NICENESS, PATIENT_NICENESS = 5, 19
PART = 1 << 14
"""The number of values handled between two reports."""

MAX_VALUES = 1 << 20
"""Maximum number of values in a large body, since the server's process validates the result."""

MAX_TOKENIZERS = 8
"""The number of adapters' tokenizers that stay loaded."""

PROMPT_FIELDS = frozenset({"prompt", "messages", "input", "system", "instructions"})
"""The fields of a body with texts of the prompt."""


class TextBoot(msgspec.Struct, frozen=True, kw_only=True):
    """The boot message. `is_patient`: the process only works while the processor is idle."""

    spec: EngineSpec
    is_patient: bool


class TextJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job for the bytes that follow, with the tokenizer of a folder ("": the model's)."""

    num_bytes: int
    folder: str = ""


class Parse(TextJob, frozen=True, kw_only=True, tag=True):
    """Parse a JSON body. `is_bounded`: its texts must fit into the context."""

    is_bounded: bool


class EncodeText(TextJob, frozen=True, kw_only=True, tag=True):
    """Tokenize a text with `long_text.encoded`."""

    add_special_tokens: bool
    most: int | None
    keep: int | None
    keeps_start: bool = False
    plain: tuple[tuple[int, int], ...] = ()


class Describe(TextJob, frozen=True, kw_only=True, tag=True):
    """Tokenize a text and write its ids, and its tokens' names, as JSON."""

    add_special_tokens: bool
    shows_texts: bool
    plain: tuple[tuple[int, int], ...] = ()


Job = Parse | EncodeText | Describe


class GoOn(msgspec.Struct, frozen=True, tag=True):
    """The parent's reply to a report without a result."""


class TextFailure(msgspec.Struct, frozen=True, kw_only=True):
    """A RequestError in serialized form."""

    what: str
    where: str | None = None
    fix: str | None = None
    code: str | None = None


class TextResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a job. It is followed by `num_bytes` bytes; the first `num_id_bytes` are the
    ids as JSON."""

    num_bytes: int = 0
    num_tokens: int = 0
    num_id_bytes: int = 0
    fault: TextFailure | None = None


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """A progress report: processor time since the last one, and the result once it is done."""

    worked_s: float
    result: TextResult | None = None


def main() -> int:
    """Run jobs until the parent closes the channel; return the exit status."""
    boot = process.read_boot(TextBoot)
    channel = process.open_channel()
    parent = _Parent(channel.makefile("rb"), channel.makefile("wb"))
    _step_back(boot.is_patient)
    reader = TextReader(boot.spec, parent.go_on if boot.is_patient else no_rest)
    while (job := parent.message(Job)) is not None:
        _answer(parent, reader, job)
    return 0


def _step_back(is_patient: bool) -> None:
    """Lower this process's priority, so that streams go first."""
    os.nice(PATIENT_NICENESS if is_patient else NICENESS)
    if is_patient and sys.platform == "linux":
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


class _Parent:
    """The other end of the channel."""

    def __init__(self, incoming: BinaryIO, outgoing: BinaryIO) -> None:
        self._incoming = incoming
        self._outgoing = outgoing
        self._since_s = time.process_time()

    def message(self, kind: Any) -> Any:
        """Return the next message, None if the parent has closed the channel."""
        message = process.read_message(self._incoming)
        return None if message is None else msgspec.msgpack.decode(message, type=kind)

    def data(self, num_bytes: int) -> bytes:
        """Return the bytes that follow a job."""
        return self._incoming.read(num_bytes)

    def report(self, result: TextResult | None, payload: bytes = b"") -> None:
        """Report the processor time since the last report, and the result."""
        report = Report(worked_s=time.process_time() - self._since_s, result=result)
        self._since_s += report.worked_s
        self._outgoing.write(process.framed(msgspec.msgpack.encode(report)))
        self._outgoing.write(payload)
        self._outgoing.flush()

    def go_on(self) -> None:
        """Report, and wait for the parent to continue the job."""
        self.report(None)
        if self.message(GoOn) is None:
            raise SystemExit(process.EXIT_PARENT_GONE)


def _answer(parent: _Parent, reader: TextReader, job: Job) -> None:
    try:
        result, payload = reader.run(job, parent.data(job.num_bytes))
    except RequestError as error:
        fault = TextFailure(what=error.what, where=error.where, fix=error.fix, code=error.code)
        result, payload = TextResult(fault=fault), b""
    parent.report(result, payload)


class TextReader:
    """Runs the jobs, calling `rest` between the parts of a job. Loads tokenizers on first use."""

    def __init__(self, spec: EngineSpec, rest: Rest) -> None:
        self._spec = spec
        self._rest = rest
        self._most = spec.run.max_model_tokens
        self._loaded: OrderedDict[str, Tokenizer] = OrderedDict()

    def run(self, job: Job, data: bytes) -> tuple[TextResult, bytes]:
        """Return the result and the bytes that follow it. Raises: RequestError"""
        tokenizer = self._tokenizer(job.folder)
        match job:
            case Parse():
                payload = self._parsed(data, is_bounded=job.is_bounded)
                return TextResult(num_bytes=len(payload)), payload
            case EncodeText():
                ids = encoded(
                    tokenizer,
                    data.decode(),
                    add_special_tokens=job.add_special_tokens,
                    max_tokens=job.most,
                    keep=job.keep,
                    keeps_start=job.keeps_start,
                    answers=self._spec.run.pooling is None,
                    plain=job.plain,
                    rest=self._rest,
                )
                payload = array("I", ids).tobytes()
                return TextResult(num_bytes=len(payload), num_tokens=len(ids)), payload
            case Describe():
                return self._described(job, data.decode())

    def _tokenizer(self, folder: str = "") -> Tokenizer:
        """Return the model's tokenizer or that of a folder, from an LRU cache."""
        if folder in self._loaded:
            self._loaded.move_to_end(folder)
            return self._loaded[folder]
        tokenizer = load_tokenizer(self._spec, folder)
        if len(self._loaded) > MAX_TOKENIZERS:
            self._loaded.pop(next(name for name in self._loaded if name))
        self._loaded[folder] = tokenizer
        return tokenizer

    def _described(self, job: Describe, text: str) -> tuple[TextResult, bytes]:
        tokenizer = self._tokenizer(job.folder)
        ids = encoded(
            tokenizer,
            text,
            add_special_tokens=job.add_special_tokens,
            plain=job.plain,
            rest=self._rest,
        )
        written = _json_list(ids, list, self._rest)
        texts = _json_list(ids, tokenizer.names, self._rest) if job.shows_texts else b""
        payload = written + texts
        result = TextResult(num_bytes=len(payload), num_tokens=len(ids), num_id_bytes=len(written))
        return result, payload

    def _parsed(self, data: bytes, *, is_bounded: bool) -> bytes:
        """Return a body as msgpack, its texts checked and truncated. Raises: RequestError"""
        try:
            body = json_value(data)
        except InvalidJson as error:
            raise RequestError(body_fault(error), code="invalid_json") from None
        self._rest()
        self._check(body, is_bounded=is_bounded and not _truncates(body))
        self._cut(body)
        try:
            return msgspec.msgpack.encode(body)
        except OverflowError:
            raise RequestError("the body holds a number of more than 64 bits.") from None
        except RecursionError:
            raise RequestError("the request body is nested too deep.") from None

    def _check(self, body: Any, *, is_bounded: bool) -> None:
        """Raise RequestError for too many values, and for text that is invalid or too long."""
        for count, (path, value) in enumerate(_values(body)):
            if count > MAX_VALUES:
                raise RequestError(
                    f"the request body holds more than {MAX_VALUES} values.",
                    fix="send several smaller requests.",
                    code="body_too_large",
                )
            if isinstance(value, str) and not value.isascii():
                verify_text(_dotted(path), value)
            if count % PART == 0:
                self._rest()
        if is_bounded and isinstance(body, dict):
            longest = self._tokenizer().longest_token_chars()
            for path, text in _prompt_texts(body):
                too_many_chars(
                    len(text),
                    longest,
                    self._most,
                    _dotted(path),
                    answers=self._spec.run.pooling is None,
                )

    def _cut(self, body: Any) -> None:
        """Cut a prompt to what truncate_prompt_tokens can keep of it. Mutates: body"""
        if not _truncates(body) or not isinstance(body.get("prompt"), str):
            return
        longest = self._tokenizer().longest_token_chars()
        keep = body["truncate_prompt_tokens"]
        keep = min(keep if keep > 0 else self._most, self._most) + 1
        if longest is not None:
            # Twice as much as the kept tokens can hold, so that tokens at the cut are dropped.
            num_chars, prompt = 2 * keep * longest, body["prompt"]
            keeps_start = body.get("truncation_side") == "right"
            body["prompt"] = prompt[:num_chars] if keeps_start else prompt[-num_chars:]


def _json_list(
    ids: Sequence[int], values_of: Callable[[Sequence[int]], list[Any]], rest: Rest
) -> bytes:
    """Return the values of ids as a JSON list."""
    written = []
    for start in range(0, len(ids), PART):
        written.append(msgspec.json.encode(values_of(ids[start : start + PART]))[1:-1])
        rest()
    return b"[" + b",".join(written) + b"]"


def _truncates(body: Any) -> bool:
    keep = body.get("truncate_prompt_tokens") if isinstance(body, dict) else None
    return type(keep) is int and (keep == -1 or keep > 0)


Path = tuple[str | int, ...]


def _prompt_texts(body: dict[str, Any]) -> Iterator[tuple[Path, str]]:
    """Yield the texts that are fully part of the prompt. Assistant turns are omitted, since
    templates drop their reasoning."""
    for name in PROMPT_FIELDS.intersection(body):
        value = body[name]
        for path, item in enumerate(value) if isinstance(value, list) else [(None, value)]:
            at: Path = (name,) if path is None else (name, path)
            if isinstance(item, str):
                yield at, item
            elif isinstance(item, dict) and item.get("role") != "assistant":
                yield from _content_texts(at, item)


def _content_texts(path: Path, item: dict[str, Any]) -> Iterator[tuple[Path, str]]:
    """Yield the texts in the content of a turn or an input item."""
    for name in ("content", "text", "output"):
        value = item.get(name)
        if isinstance(value, str):
            yield (*path, name), value
        elif isinstance(value, list):
            for i, part in enumerate(value):
                text = part.get("text") if isinstance(part, dict) else part
                if isinstance(text, str):
                    yield (*path, name, i), text


def _values(body: Any) -> Iterator[tuple[Path, Any]]:
    """Yield every value and every name within a body, with its path."""
    open_parts: list[Iterator[tuple[Path, Any]]] = [iter([((), body)])]
    while open_parts:
        item = next(open_parts[-1], None)
        if item is None:
            open_parts.pop()
            continue
        yield item
        path, value = item
        if isinstance(value, dict):
            open_parts.append(_members(path, value))
        elif isinstance(value, list):
            open_parts.append(_items(path, value))


def _items(path: Path, value: list[Any]) -> Iterator[tuple[Path, Any]]:
    for i, part in enumerate(value):
        yield (*path, i), part


def _members(path: Path, value: dict[str, Any]) -> Iterator[tuple[Path, Any]]:
    for name, part in value.items():
        yield (*path, name), name
        yield (*path, name), part


def _dotted(path: Path) -> str:
    """Return a path as text, without halves of surrogate pairs."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text.encode("utf-8", "replace").decode()

"""Conversion of engine outputs to events, and of events to a server-sent stream.

`event_steps` is the one path of every answer: a stream sends its steps as they arrive, a plain
answer joins them.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from dovetail.engine.client.results.outputs import CompletionDelta, RequestMetrics, RequestOutput
from dovetail.errors import DovetailError, RequestFault
from dovetail.interfaces.data.step import TokenLogprobs
from dovetail.observability import metrics
from dovetail.processes.uninterrupted import ended, uninterrupted
from dovetail.server.generate.body.as_chat import in_words_of
from dovetail.server.generate.body.dialect import AnswerEnd, Dialect
from dovetail.server.generate.events import CountedSession, Event, SessionPlan
from dovetail.server.http.errors import ClientDisconnected, Problem, problem_of

logger = logging.getLogger("dovetail.server")
KEEP_ALIVE = b": keep-alive\n\n"
"""A comment, which clients of server-sent events ignore."""
EVENT_STREAM = "text/event-stream; charset=utf-8"
Answer = TypeVar("Answer")
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """New output of one answer. `text` is what the events were made from.

    The counts cover the whole request so far. `finish_reason` is set exactly once per answer, in
    the words of the request's dialect.
    """

    index: int
    text: str
    events: Sequence[Event]
    token_ids: Sequence[int]
    logprobs: Sequence[TokenLogprobs] | None
    finish_reason: str | None
    stop_reason: int | str | None
    num_prompt_tokens: int
    num_generated_tokens: int
    num_cached_tokens: int
    num_reasoning_tokens: int = 0
    prompt_logprobs: Sequence[TokenLogprobs] | None = None
    metrics: RequestMetrics | None = None
    transfer: dict[str, Any] | None = None


async def event_steps(
    outputs: AsyncGenerator[RequestOutput, None],
    plan: SessionPlan,
    dialect: Dialect,
) -> AsyncGenerator[Step, None]:
    """Yield a step per delta of the engine. Closing it closes `outputs`, which aborts.

    Raises: RequestFault if the engine ended an answer with an error or an abort; RequestError in
    the dialect's field names
    """
    sessions: dict[int, CountedSession] = {}
    num_generated = 0
    try:
        with in_words_of(dialect.field_names):
            async for output in outputs:
                for delta in output.deltas:
                    num_generated += len(delta.token_ids)
                    session = sessions.get(delta.index) or CountedSession(plan)
                    sessions[delta.index] = session
                    yield _step(output, delta, session, dialect, num_generated, sessions.values())
    finally:
        await outputs.aclose()


def _step(
    output: RequestOutput,
    delta: CompletionDelta,
    session: CountedSession,
    dialect: Dialect,
    num_generated: int,
    sessions: Iterable[CountedSession],
) -> Step:
    """Return the step for a delta. Mutates: session. Raises: RequestFault"""
    events = session.feed(delta.text, delta.token_ids, delta.num_chars)
    if delta.finish_reason is not None:
        _check_end(delta.finish_reason, output.request_id)
        events = [*events, *session.finish(is_cut=delta.finish_reason != "stop")]
    return Step(
        index=delta.index,
        text=delta.text,
        events=events,
        token_ids=delta.token_ids,
        logprobs=delta.logprobs,
        finish_reason=_reason(delta, session, dialect),
        stop_reason=delta.stop_reason,
        num_prompt_tokens=len(output.prompt_token_ids),
        num_generated_tokens=num_generated,
        num_cached_tokens=output.num_cached_tokens,
        num_reasoning_tokens=sum(s.num_reasoning_tokens for s in sessions),
        prompt_logprobs=output.prompt_logprobs,
        metrics=output.metrics,
        transfer=output.transfer,
    )


def _reason(delta: CompletionDelta, counted: CountedSession, dialect: Dialect) -> str | None:
    if delta.finish_reason is None:
        return None
    return dialect.finish_reason(
        AnswerEnd(
            cause=delta.finish_reason,
            num_calls=counted.session.num_calls,
            is_forced_call=counted.session.plan.is_forced_call,
            is_stop_text=isinstance(delta.stop_reason, str),
            is_unfinished=counted.has_unfinished_call,
        )
    )


def _check_end(cause: str, request_id: str) -> None:
    if cause in ("abort", "error"):
        raise RequestFault(f"the engine ended the request ({cause}).", where=request_id)


async def cancel_on_disconnect(request: Request, work: Coroutine[Any, Any, Answer]) -> Answer:
    """Return the result of `work`, which is cancelled when the client leaves.

    An unsent stream that `work` has created is closed. Raises: ClientDisconnected, what `work`
    raises
    """
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_disconnected(request.receive))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        has_left = not task.done()
        await ended(watch)
        if has_left:
            raise ClientDisconnected
    except BaseException:
        await uninterrupted(_given_up(task))
        raise
    return task.result()


async def _given_up(task: asyncio.Future[Any]) -> None:
    """End a task with an unused result. If the result is a stream, close it."""
    await ended(task)
    if not task.cancelled() and task.exception() is None:
        answer = task.result()
        if isinstance(answer, EventStream):
            await answer.aclose()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def continued(
    first: asyncio.Future[Item], rest: AsyncIterator[Item]
) -> AsyncGenerator[Item, None]:
    """Yield `first` when it arrives, then the rest."""
    try:
        yield await first
        async for item in rest:
            yield item
    finally:
        await ended(first)


async def kept_alive(
    items: AsyncIterator[Item], interval_s: float
) -> AsyncGenerator[Item | None, None]:
    """Yield the items, and None whenever none has arrived for `interval_s`."""
    coming: asyncio.Future[Item] | None = None
    try:
        while True:
            coming = coming or asyncio.ensure_future(anext(items))
            await asyncio.wait({coming}, timeout=interval_s)
            if not coming.done():
                yield None
                continue
            done, coming = coming, None
            try:
                item = done.result()
            except StopAsyncIteration:
                return
            yield item
    finally:
        if coming is not None:
            await ended(coming)


async def begun_within(items: AsyncIterator[Item], limit_s: float) -> asyncio.Future[Item]:
    """Return the first item as a future, done or still pending after the time limit (0: no limit).

    Raises: what the items raise within the limit
    """
    first = asyncio.ensure_future(anext(items))
    try:
        await asyncio.wait({first}, timeout=limit_s or None)
    except BaseException:
        await ended(first)
        raise
    if first.done():
        first.result()
    return first


_LINE_ENDS = {c.encode(): f"\\u{ord(c):04x}".encode() for c in "\u0085\u2028\u2029"}


def one_line(data: bytes) -> bytes:
    """Return JSON with Unicode line ends escaped, for readers that split lines at them."""
    for char, escape in _LINE_ENDS.items():
        data = data.replace(char, escape)
    return data


def data_frame(data: bytes) -> bytes:
    """Return an unnamed event."""
    return b"data: " + one_line(data) + b"\n\n"


def named_frame(name: str, data: bytes) -> bytes:
    """Return a named event."""
    return b"event: " + name.encode() + b"\n" + data_frame(data)


def event_frame(event: dict[str, Any]) -> bytes:
    """Return an event named by its "type", with the whole event as its JSON data."""
    data = json.dumps(event, ensure_ascii=False).encode("utf-8", "replace")
    return named_frame(event["type"], data)


@dataclass(frozen=True, slots=True, kw_only=True)
class Framing:
    """How a dialect writes its stream: the frames of chunks, the frame that marks success at the
    end, the frame of an error (b"": there is none, so the connection is cut), and what keeps the
    connection open."""

    frame: Callable[[bytes], bytes] = data_frame
    end: bytes = data_frame(b"[DONE]")
    error: Callable[[Problem], bytes] = lambda problem: data_frame(problem.body())
    keep_alive: Callable[[], bytes] = lambda: KEEP_ALIVE
    media_type: str = EVENT_STREAM


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamHead:
    """The settings of a stream before its first chunk.

    The framing's `keep_alive` is sent whenever no chunk has come for `keep_alive_s` (0: never).
    `logs_stack`: log the traceback of every error, not only of unexpected ones.
    """

    headers: dict[str, str]
    request_id: str
    logs_stack: bool = False
    keep_alive_s: float = 0.0
    framing: Framing = field(default_factory=Framing)


class EventStream(StreamingResponse):
    """A streamed response of the dialect's frames. `owned` is closed at its end.

    An error after the first chunk becomes an error event, after which the stream ends without its
    end frame, so that no client takes it for a success. If the client leaves, the chunks stop
    immediately.
    """

    def __init__(
        self, chunks: AsyncGenerator[bytes, None], owned: AsyncExitStack, head: StreamHead
    ) -> None:
        self._chunks = chunks
        self._owned = owned
        self._request_id = head.request_id
        self._logs_stack = head.logs_stack
        self._keep_alive_s = head.keep_alive_s
        self._framing = head.framing
        fixed = {
            "content-type": head.framing.media_type,
            "cache-control": "no-cache",
            "x-accel-buffering": "no",
        }
        super().__init__(chunks, headers={**fixed, **head.headers})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream."""
        pump = asyncio.ensure_future(self._pump(send))
        watch = asyncio.ensure_future(_disconnected(receive))
        try:
            await asyncio.wait({pump, watch}, return_when=asyncio.FIRST_COMPLETED)
            if not pump.done():
                metrics.DISCONNECTS.inc()
                logger.info("request %s ended: the client left", self._request_id)
        finally:
            await uninterrupted(self._close(pump, watch))
        if not pump.cancelled():
            pump.result()

    async def aclose(self) -> None:
        """Close the chunks and `owned`, whether they were sent or not. May be called twice."""
        await uninterrupted(self._close())

    async def _close(self, *tasks: asyncio.Future[None]) -> None:
        async with self._owned:
            await ended(*tasks)
            await self._chunks.aclose()

    async def _pump(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        framing = self._framing
        try:
            async with aclosing(self._to_send()) as chunks:
                async for chunk in chunks:
                    frame = framing.keep_alive() if chunk is None else framing.frame(chunk)
                    await _send_frame(send, frame)
            if framing.end:
                await _send_frame(send, framing.end)
        except Exception as error:
            if not await self._send_error(send, error):
                return
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _to_send(self) -> AsyncGenerator[bytes | None, None]:
        """Return the chunks, with None whenever a keep-alive comment is due."""
        if self._keep_alive_s:
            return kept_alive(self._chunks, self._keep_alive_s)
        return self._chunks

    async def _send_error(self, send: Send, error: Exception) -> bool:
        """Send an error event. Returns whether the stream may end as a whole one does."""
        if isinstance(error, OSError):
            return True  # the connection is broken, so the error cannot be sent
        has_stack = not isinstance(error, DovetailError) or self._logs_stack
        problem = problem_of(error)
        metrics.REFUSED_REQUESTS.labels(problem.info.type, str(problem.status)).inc()
        logger.log(
            logging.WARNING if isinstance(error, DovetailError) else logging.ERROR,
            "request %s ended with an error: %s",
            self._request_id,
            problem.info.message,
            exc_info=error if has_stack else None,
        )
        frame = self._framing.error(problem)
        if frame:
            await _send_frame(send, frame)
        return bool(frame)


async def _send_frame(send: Send, frame: bytes) -> None:
    await send({"type": "http.response.body", "body": frame, "more_body": True})


async def merged(
    streams: Sequence[AsyncGenerator[Step, None]],
) -> AsyncGenerator[tuple[int, Step], None]:
    """Yield (stream index, step) as the steps arrive. Closing it closes every stream.

    Raises: what the first failing stream raises; the others are closed then.
    """
    news: asyncio.Queue[tuple[int, Step] | BaseException | None] = asyncio.Queue()
    tasks = [asyncio.ensure_future(_forward(i, s, news)) for i, s in enumerate(streams)]
    try:
        num_open = len(tasks)
        while num_open:
            item = await news.get()
            if item is None:
                num_open -= 1
            elif isinstance(item, BaseException):
                raise item
            else:
                yield item
    finally:
        await uninterrupted(_closed(tasks, streams))


async def _closed(
    tasks: Sequence[asyncio.Future[None]], streams: Sequence[AsyncGenerator[Step, None]]
) -> None:
    """End the tasks, then close every stream, even if closing one of them fails."""
    await ended(*tasks)
    async with AsyncExitStack() as stack:
        for stream in streams:
            stack.push_async_callback(stream.aclose)


async def _forward(
    which: int,
    stream: AsyncGenerator[Step, None],
    news: asyncio.Queue[tuple[int, Step] | BaseException | None],
) -> None:
    try:
        async for step in stream:
            news.put_nowait((which, step))
    except Exception as error:
        news.put_nowait(error)
        return
    news.put_nowait(None)

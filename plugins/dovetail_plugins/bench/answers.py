"""From the bytes of an answer to token times.

**How tokens are timed.** All bytes of one read of the socket are one arrival. An arrival of k
tokens counts as k gaps of gap / k, with the gap since the previous arrival. The first arrival's gap
is the time to the first token, however many tokens it has. The number of tokens of an event is the
first available of: the running `usage` in the events; the final `usage`, spread evenly over the
events with text; one token per such event. An event without a token is not an arrival. Format of a
stream: server-sent events (WHATWG HTML, section 9.2), each one JSON object of the OpenAI API, the
last one `[DONE]`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from dovetail.json_values import json_value
from dovetail_plugins.bench.client import Trace
from dovetail_plugins.http_client.events import EventReader

MAX_ERROR_CHARS = 300
TEXT_FIELDS = ("content", "reasoning_content", "reasoning", "refusal")


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One event: its arrival time, whether it has text, and the token count so far if it reports
    one."""

    at_s: float
    bears_text: bool = False
    total_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOutcome:
    """The outcome of one request. Times in seconds of one clock; `arrivals` are (time, tokens).

    `counted_by` is the source of the token counts: running usage, final usage, or events.
    """

    start_s: float
    end_s: float
    connect_s: float = 0.0
    arrivals: tuple[tuple[float, int], ...] = ()
    prompt_tokens: int | None = None
    output_tokens: int = 0
    finish_reason: str | None = None
    counted_by: str = "events"
    error: str | None = None

    @property
    def e2e_s(self) -> float:
        """Return the time from the request's first byte to the answer's last."""
        return self.end_s - self.start_s

    @property
    def ttft_s(self) -> float | None:
        """Return the time to the first token, or None if there was none."""
        return self.arrivals[0][0] - self.start_s if self.arrivals else None

    @property
    def tpot_s(self) -> float | None:
        """Return the mean time per token after the first arrival, or None if there are none."""
        later = sum(tokens for _, tokens in self.arrivals[1:])
        return (self.arrivals[-1][0] - self.arrivals[0][0]) / later if later else None

    def itl_s(self) -> list[float]:
        """Return the time of every token after the first arrival."""
        gaps: list[float] = []
        for (before_s, _), (at_s, tokens) in pairwise(self.arrivals):
            gaps += [(at_s - before_s) / tokens] * tokens
        return gaps


def read_answer(trace: Trace) -> RequestOutcome:
    """Return the outcome of a trace; every failure is reported in `error`."""
    if trace.error is None and trace.status == 200:
        return _read_stream(trace)
    error = trace.error or f"status {trace.status}: {message_of(trace.body)}"
    return failed_answer(trace, error)


def failed_answer(trace: Trace, error: str) -> RequestOutcome:
    """Return the outcome of a failed trace."""
    return RequestOutcome(
        start_s=trace.start_s,
        end_s=trace.end_s,
        connect_s=trace.connect_s,
        error=error[:MAX_ERROR_CHARS],
    )


def _read_stream(trace: Trace) -> RequestOutcome:
    events: list[Event] = []
    finish_reason: str | None = None
    usage: dict[str, Any] = {}
    for at_s, data in sse_data(trace.pieces):
        if data == "[DONE]":
            break
        try:
            body = json_value(data)
        except ValueError:
            return failed_answer(trace, f"an event is not JSON: {data}")
        if not isinstance(body, dict) or body.get("error"):
            return failed_answer(trace, f"error in the stream: {message_of(data.encode())}")
        event, reason = read_event(at_s, body)
        events.append(event)
        finish_reason = reason or finish_reason
        usage = body.get("usage") or usage
    if finish_reason is None:
        what = "the stream ended without a finish_reason"
        return failed_answer(
            trace, what if events else f"no event stream: {message_of(trace.body)}"
        )
    counted_by, arrivals = timed_tokens(events, usage.get("completion_tokens"))
    return RequestOutcome(
        start_s=trace.start_s,
        end_s=trace.end_s,
        connect_s=trace.connect_s,
        arrivals=tuple(arrivals),
        prompt_tokens=usage.get("prompt_tokens"),
        output_tokens=sum(tokens for _, tokens in arrivals),
        finish_reason=finish_reason,
        counted_by=counted_by,
    )


def read_event(at_s: float, body: dict[str, Any]) -> tuple[Event, str | None]:
    """Return (a chunk of either endpoint as an event, its finish_reason)."""
    bears_text = False
    reason = None
    for choice in body.get("choices") or ():
        delta = choice.get("delta") or {}
        bears_text |= bool(choice.get("text") or delta.get("tool_calls"))
        bears_text |= any(delta.get(name) for name in TEXT_FIELDS)
        reason = choice.get("finish_reason") or reason
    total = (body.get("usage") or {}).get("completion_tokens")
    return Event(at_s=at_s, bears_text=bears_text, total_tokens=total), reason


def timed_tokens(
    events: Sequence[Event], total_tokens: int | None
) -> tuple[str, list[tuple[float, int]]]:
    """Return (how tokens were counted, (time, tokens) of every arrival), by the rule above."""
    bearers = [event for event in events if event.bears_text]
    if total_tokens is not None and all(event.total_tokens is not None for event in bearers):
        counted = [event for event in events if event.total_tokens is not None]
        totals = [event.total_tokens or 0 for event in counted]
        counted_by = "running usage"
    elif total_tokens is not None:
        counted = bearers
        totals = [total_tokens * place // len(bearers) for place in range(1, len(bearers) + 1)]
        counted_by = "final usage"
    else:
        counted = bearers
        totals = list(range(1, len(bearers) + 1))
        counted_by = "events"
    return counted_by, _arrivals([event.at_s for event in counted], totals)


def _arrivals(times_s: Sequence[float], totals: Sequence[int]) -> list[tuple[float, int]]:
    """Return (time, new tokens) for every time at which the total grew."""
    arrivals: list[tuple[float, int]] = []
    before = 0
    for at_s, total in zip(times_s, totals, strict=True):
        new = total - before
        if new <= 0:
            continue
        before = total
        if arrivals and arrivals[-1][0] == at_s:
            new += arrivals.pop()[1]
        arrivals.append((at_s, new))
    return arrivals


def sse_data(pieces: Sequence[tuple[float, bytes]]) -> Iterator[tuple[float, str]]:
    """Yield (time, data) of every event, with the time of the piece that completed it."""
    reader = EventReader()
    for at_s, piece in pieces:
        for data in reader.feed(piece):
            yield at_s, data.decode("utf-8", "replace")


def message_of(body: bytes) -> str:
    """Return the message of an OpenAI error body, or else the beginning of the body."""
    text = body.decode("utf-8", "replace")
    try:
        error = json_value(text)["error"]
    except (ValueError, KeyError, TypeError):
        return text[:MAX_ERROR_CHARS] or "no body"
    message = error.get("message") if isinstance(error, dict) else error
    return str(message or error)[:MAX_ERROR_CHARS]

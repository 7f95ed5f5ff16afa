"""Session: one answer's text, fed in any pieces, as events that do not depend on the pieces.

Reasoning and tool parsers only say their markers and parse one finished region; this file finds
the regions. What the events are is a function of the joined text alone. Blanks beside a region are
layout and are dropped; no other text is lost: a region that is no call comes out as content.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from dovetail.interfaces.text import Markers, Tool, ToolCall
from dovetail.interfaces.tool_parser import MalformedToolCall, ToolParser, UnfinishedToolCall
from dovetail.server.events.matcher import find_first, partial_length
from dovetail.server.events.types import (
    ContentDelta,
    Event,
    ReasoningDelta,
    ToolCallArgsDelta,
    ToolCallStart,
)

MAX_REGION_ENDS = 8
"""How many end markers may stand inside one call's strings before the region is given up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionPlan:
    """What the sessions of one request have in common.

    `starts_inside` says that the rendered prompt ends inside a reasoning region. `dropped` are
    texts of special tokens that must not reach the client. `max_calls` None is unbounded.
    """

    reasoning: Markers | None = None
    tool_parser: ToolParser | None = None
    tools: tuple[Tool, ...] = ()
    starts_inside: bool = False
    dropped: tuple[str, ...] = ()
    max_calls: int | None = None

    @property
    def is_plain(self) -> bool:
        """Return whether text passes through unchanged."""
        return self.reasoning is None and self.tool_parser is None and not self.dropped


class Session:
    """The state machine of one answer. Feed text, then finish once."""

    def __init__(self, plan: SessionPlan) -> None:
        self.plan = plan
        self.num_calls = 0
        self._regions = plan.tool_parser.markers if plan.tool_parser else ()
        self._phase = "reasoning" if plan.reasoning and plan.starts_inside else "content"
        self._pending = ""
        self._blank: list[str] = []
        self._has_said = False
        self._skips_blank = self._phase == "reasoning"
        self._region: _Region | None = None
        self._events: list[Event] = []

    @property
    def is_reasoning(self) -> bool:
        """Return whether the text so far ends inside a reasoning region."""
        return self._phase == "reasoning"

    def feed(self, text: str) -> list[Event]:
        """Return the events that this text completes. Mutates: self"""
        if self.plan.is_plain:
            return [ContentDelta(text=text)] if text else []
        self._pending += text
        return self._run(is_final=False)

    def finish(self) -> list[Event]:
        """Return what was held back. Mutates: self"""
        events = self._run(is_final=True)
        if self._blank:
            self._emit("".join(self._blank))
            self._blank = []
        return events + self._take()

    def _run(self, *, is_final: bool) -> list[Event]:
        more = True
        while more:
            if self._phase == "region":
                more = self._step_region(is_final)
            elif self._phase == "reasoning":
                more = self._step_reasoning(is_final)
            else:
                more = self._step_content(is_final)
        return self._take()

    def _take(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def _next_marker(self, markers: tuple[str, ...], is_final: bool) -> tuple[str, str] | None:
        """Return (text before, marker) and cut both from the pending text, or None after saying
        all text that cannot be part of a marker."""
        found = find_first(self._pending, markers)
        held = 0 if is_final else partial_length(self._pending, markers)
        safe = len(self._pending) - held
        if found is None or (held and safe <= found.start):
            text, self._pending = self._pending[:safe], self._pending[safe:]
            self._say(text)
            return None
        marker = markers[found.which]
        before = self._pending[: found.start]
        self._pending = self._pending[found.start + len(marker) :]
        return before, marker

    def _step_content(self, is_final: bool) -> bool:
        reasoning = self.plan.reasoning
        opening = (reasoning.start,) if reasoning else ()
        starts = tuple(region.start for region in self._regions)
        found = self._next_marker((*starts, *opening, *self.plan.dropped), is_final)
        if found is None:
            return False
        before, marker = found
        self._say(before)
        if marker in starts:
            self._region = _Region(markers=self._regions[starts.index(marker)])
            self._phase = "region"
        elif marker in opening:
            self._open_reasoning(marker)
        return True

    def _open_reasoning(self, marker: str) -> None:
        if self._has_said:
            self._say(marker)
            return
        self._phase = "reasoning"
        self._leave()

    def _step_reasoning(self, is_final: bool) -> bool:
        assert self.plan.reasoning is not None
        markers = self.plan.reasoning
        found = self._next_marker((markers.end, markers.start, *self.plan.dropped), is_final)
        if found is None:
            return False
        before, marker = found
        self._say(before)
        if marker == markers.end:
            self._phase = "content"
            self._leave()
        elif marker == markers.start and self._has_said:
            self._say(marker)
        return True

    def _leave(self) -> None:
        """Pass from one region to the next: blanks on both sides are layout."""
        self._blank = []
        self._has_said = False
        self._skips_blank = True

    def _say(self, text: str) -> None:
        """Emit text of the current phase, holding blanks back until more text follows."""
        if self._skips_blank:
            text = text.lstrip()
        if not text:
            return
        self._skips_blank = False
        body = text.rstrip()
        if body:
            self._emit("".join(self._blank) + body)
            self._blank = []
            self._has_said = True
        if len(body) < len(text):
            self._blank.append(text[len(body) :])

    def _emit(self, text: str) -> None:
        kind = ReasoningDelta if self._phase == "reasoning" else ContentDelta
        self._events.append(kind(text=text))

    def _step_region(self, is_final: bool) -> bool:
        region = self._region
        assert region is not None
        text, self._pending = self._pending, ""
        rest = region.read(text)
        if rest is None and not is_final:
            return False
        body = region.body() if rest is not None else region.whole()
        calls, can_grow = self._parse(body)
        if calls is None and rest is not None and can_grow and region.num_ends < MAX_REGION_ENDS:
            region.go_on()
            self._pending = rest
            return True
        self._close_region(region, calls, rest or "")
        return bool(self._pending)

    def _parse(self, body: str) -> tuple[list[ToolCall] | None, bool]:
        """Return (calls or None, whether more text could make the body a call)."""
        assert self.plan.tool_parser is not None
        for dropped in self.plan.dropped:
            body = body.replace(dropped, "")
        try:
            return self.plan.tool_parser.parse(body, self.plan.tools), False
        except UnfinishedToolCall:
            return None, True
        except MalformedToolCall:
            return None, False

    def _close_region(self, region: _Region, calls: list[ToolCall] | None, rest: str) -> None:
        self._phase, self._region = "content", None
        if calls is None:
            text, self._pending = region.split_at_first_end(rest)
            self._say(text)
            return
        self._leave()
        self._pending = rest
        for call in calls:
            self._emit_call(call)

    def _emit_call(self, call: ToolCall) -> None:
        if self.plan.max_calls is not None and self.num_calls >= self.plan.max_calls:
            return
        index, self.num_calls = self.num_calls, self.num_calls + 1
        call_id = f"call_{secrets.token_hex(12)}"
        self._events.append(ToolCallStart(index=index, call_id=call_id, name=call.name))
        self._events.append(ToolCallArgsDelta(index=index, text=call.arguments))


class _Region:
    """The text of one open tool region, searched for its end marker once."""

    def __init__(self, markers: Markers) -> None:
        self.markers = markers
        self.num_ends = 0
        self._parts: list[str] = []
        self._tail = ""
        self._first_end: int | None = None
        self._num_chars = 0

    def read(self, text: str) -> str | None:
        """Take text up to and with the end marker; return what follows it, or None."""
        end = self.markers.end
        window = self._tail + text
        at = window.find(end) if end else -1
        if at < 0:
            self._add(text)
            keep = len(end) - 1
            self._tail = window[-keep:] if keep > 0 else ""
            return None
        cut = at + len(end) - len(self._tail)
        self._add(text[:cut])
        self._tail = ""
        self.num_ends += 1
        if self._first_end is None:
            self._first_end = self._num_chars
        return text[cut:]

    def _add(self, text: str) -> None:
        self._parts.append(text)
        self._num_chars += len(text)

    def go_on(self) -> None:
        """Treat the end marker just read as part of the body."""
        self._tail = ""

    def whole(self) -> str:
        """Return all text read so far, end markers included."""
        return "".join(self._parts)

    def body(self) -> str:
        """Return the text before the end marker just read."""
        return self.whole()[: -len(self.markers.end)]

    def split_at_first_end(self, rest: str) -> tuple[str, str]:
        """Return (the region as plain text, what follows): it ends at its first end marker."""
        text = self.whole()
        cut = len(text) if self._first_end is None else self._first_end
        return self.markers.start + text[:cut], text[cut:] + rest

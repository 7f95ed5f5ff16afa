"""Session: one answer's text, fed in any pieces, as events that do not depend on the pieces.

Reasoning and tool parsers only say their markers and parse one finished region; this file finds
the regions. What the events come to is a function of the joined text alone. Blanks beside a region
are layout and are dropped; no other text is lost: a region that is not a call is content. A
call that has begun is passed on as it grows, and stays one even if its text ends badly. Stop
strings are looked for in content alone; what follows one is not read.
"""

from __future__ import annotations

from dataclasses import dataclass

from dovetail.engine.stop import StopMatcher
from dovetail.interfaces.text import Markers, Tool, ToolCall
from dovetail.interfaces.tool_parser import MalformedToolCall, ToolParser, UnfinishedToolCall
from dovetail.server.events.matcher import find_first, partial_length
from dovetail.server.events.region import Region
from dovetail.server.events.types import ContentDelta, Event, ReasoningDelta

FEED_CHARS = 4096
"""Longer text is read in parts of this size: text that waits is copied at every marker."""
MAX_REGION_ENDS = 8
"""How many end markers may stand inside one call's strings before the region is given up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionPlan:
    """What the sessions of one request have in common.

    `starts_inside` says that the rendered prompt ends inside a reasoning region. `layout` are texts
    of the chat format that are not content but may stand in a call's strings. `max_calls` None is
    unbounded. `is_forced_call`: the request named the tool to call. `stops` are the stop strings,
    which count from the token `min_tokens` on.
    """

    reasoning: Markers | None = None
    tool_parser: ToolParser | None = None
    tools: tuple[Tool, ...] = ()
    starts_inside: bool = False
    layout: tuple[str, ...] = ()
    max_calls: int | None = None
    is_forced_call: bool = False
    stops: tuple[str, ...] = ()
    includes_stop: bool = False
    min_tokens: int = 0

    @property
    def is_plain(self) -> bool:
        """Return whether text passes through unchanged, but for stop strings."""
        return not (self.reasoning or self.tool_parser or self.layout)


class Session:
    """The state machine of one answer. Feed text, then finish once."""

    def __init__(self, plan: SessionPlan) -> None:
        self.plan = plan
        self.num_calls = 0
        self._regions = plan.tool_parser.markers if plan.tool_parser else ()
        self._layout = _longest_first(plan.layout)
        self._phase = "reasoning" if plan.reasoning and plan.starts_inside else "content"
        self._pending = ""
        self._blank: list[str] = []
        self._has_said = False
        self._skips_blank = self._phase == "reasoning"
        self._region: Region | None = None
        self._events: list[Event] = []
        self._stops = StopMatcher(plan.stops, includes_stop=plan.includes_stop)
        self._may_stop = True
        self._is_cut = False

    @property
    def matched(self) -> str | None:
        """Return the stop string that ended the content, or None."""
        return self._stops.matched

    @property
    def is_reasoning(self) -> bool:
        """Return whether the text so far ends inside a reasoning region."""
        return self._phase == "reasoning"

    def feed(self, text: str, *, may_stop: bool = True) -> list[Event]:
        """Return the events that this text completes. Mutates: self

        A stop string that becomes complete while `may_stop` is false is ordinary text.
        """
        if self.plan.is_plain:
            return [ContentDelta(text=text)] if text else []
        self._may_stop = may_stop
        events: list[Event] = []
        for start in range(0, len(text), FEED_CHARS):
            self._pending += text[start : start + FEED_CHARS]
            events += self._run(is_final=False)
        return events

    def finish(self, *, is_cut: bool = False) -> list[Event]:
        """Return what was held back. Mutates: self

        `is_cut`: the text did not end by itself, so a call that is not closed stays open.
        """
        self._is_cut = is_cut
        events = self._run(is_final=True)
        if self._blank:
            self._emit("".join(self._blank))
            self._blank = []
        self._say_held()
        return events + self._take()

    def _run(self, *, is_final: bool) -> list[Event]:
        more = True
        while more and self.matched is None:
            if self._phase == "region":
                more = self._step_region(is_final)
            elif self._phase == "reasoning":
                more = self._step_reasoning(is_final)
            elif self._phase == "verbatim":
                more = self._step_verbatim(is_final)
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
        regions = [r for r in self._regions if not (r.opens_answer and self._has_said)]
        starts = tuple(region.start for region in regions)
        found = self._next_marker((*starts, *opening, *self._layout), is_final)
        if found is None:
            return False
        before, marker = found
        self._say(before)
        which = starts.index(marker) if marker in starts else -1
        if which >= 0 and regions[which].opens_answer and self._has_said:
            self._say(marker)
        elif which >= 0:
            self._open_region(regions[which])
        elif marker in opening:
            self._open_reasoning(marker)
        return True

    def _step_verbatim(self, is_final: bool) -> bool:
        found = self._next_marker(self._layout, is_final)
        if found is not None:
            self._say(found[0])
        return found is not None

    def _open_region(self, markers: Markers) -> None:
        parser = self.plan.tool_parser
        assert parser is not None
        self._region = Region(markers, id_prefix=parser.id_prefix, id_digits=parser.id_digits)
        self._phase = "region"

    def _open_reasoning(self, marker: str) -> None:
        reasoning = self.plan.reasoning
        if self._has_said and not (reasoning and reasoning.may_reopen):
            self._say(marker)
            return
        self._say_held()
        self._phase = "reasoning"
        self._leave()

    def _step_reasoning(self, is_final: bool) -> bool:
        assert self.plan.reasoning is not None
        markers = self.plan.reasoning
        found = self._next_marker((markers.end, markers.start, *self._layout), is_final)
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
        self._has_said = self._has_said or bool(body)
        body = text if self._is_settled() else body
        if body:
            self._emit("".join(self._blank) + body)
            self._blank = []
        if len(body) < len(text):
            self._blank.append(text[len(body) :])

    def _is_settled(self) -> bool:
        """Return whether nothing but content can follow: then blanks wait for nothing."""
        if self._phase != "content" or not self._has_said:
            return self._phase == "verbatim"
        reasoning = self.plan.reasoning
        can_think = reasoning is not None and reasoning.may_reopen
        return not can_think and all(region.opens_answer for region in self._regions)

    def _emit(self, text: str) -> None:
        if self._phase == "reasoning":
            self._events.append(ReasoningDelta(text=text))
            return
        text = self._stops.push(text, may_stop=self._may_stop)
        if text:
            self._events.append(ContentDelta(text=text))

    def _say_held(self) -> None:
        """Emit what may have been the beginning of a stop string: no stop string goes on behind
        something that is not content."""
        text = self._stops.flush()
        if text:
            self._events.append(ContentDelta(text=text))

    def _step_region(self, is_final: bool) -> bool:
        region = self._region
        assert region is not None
        text, self._pending = self._pending, ""
        rest = region.read(text)
        if rest is None and not is_final:
            return self._look(region)
        if rest is None:
            return self._end_unmarked(region, self._syntax_end(region, region.whole()))
        body = region.body()
        calls, can_grow = self._parse(body)
        if calls is None and can_grow and region.num_ends < MAX_REGION_ENDS:
            region.go_on()
            self._pending = rest
            return True
        self._close_region(region, calls or self._begun(body), rest)
        return bool(self._pending)

    def _syntax_end(self, region: Region, body: str) -> int | None:
        """Return where a region without an end marker is over, or None."""
        assert self.plan.tool_parser is not None
        return None if region.markers.end else self.plan.tool_parser.region_end(body)

    def _end_unmarked(self, region: Region, at: int | None) -> bool:
        """Close a region that no marker ended: at this place of its body, or with the text."""
        rest = "" if at is None else region.cut(at)
        is_open = self._is_cut and at is None
        calls = None if is_open else self._parse(region.whole())[0]
        calls = calls or self._begun(region.whole())
        if region.markers.end or calls or region.has_told:
            self._close_region(region, calls, rest)
        else:
            self._give_up(region, rest)
        return bool(self._pending)

    def _give_up(self, region: Region, rest: str) -> None:
        """Let a region pass as plain text, and all that follows it: where no end is waited for,
        nothing that follows can make it a call."""
        self._phase, self._region = "verbatim", None
        text, _ = region.split_at_first_end("")
        self._pending = text + rest

    def _look(self, region: Region) -> bool:
        """Pass on what has grown of the region's calls, or give it up as plain text."""
        body = region.growing_body()
        if body is None:
            return False
        at = self._syntax_end(region, body)
        if at is not None:
            return self._end_unmarked(region, at)
        calls = self._begun(body)
        if calls is not None:
            self._tell(region, calls)
        elif not region.markers.end and not region.has_told:
            self._give_up(region, "")
            return True
        return False

    def _parse(self, body: str) -> tuple[list[ToolCall] | None, bool]:
        """Return (calls or None, whether more text could make the body a call)."""
        assert self.plan.tool_parser is not None
        try:
            return self.plan.tool_parser.parse(body, self.plan.tools), False
        except UnfinishedToolCall:
            return None, True
        except MalformedToolCall:
            return None, False

    def _begun(self, body: str) -> list[ToolCall] | None:
        """Return the calls that a body begins with, or None when it can be none."""
        assert self.plan.tool_parser is not None
        try:
            return self.plan.tool_parser.so_far(body, self.plan.tools)
        except UnfinishedToolCall:
            return []
        except MalformedToolCall:
            return None

    def _close_region(self, region: Region, calls: list[ToolCall] | None, rest: str) -> None:
        self._phase, self._region = "content", None
        if not calls and not region.has_told:
            text, self._pending = region.split_at_first_end(rest)
            self._say(_without(text, self._layout))
            return
        self._tell(region, calls or [])
        self._leave()
        self._pending = rest

    def _tell(self, region: Region, calls: list[ToolCall]) -> None:
        before = self.num_calls - region.num_told
        if calls:
            self._say_held()
        self._events += region.tell(calls, before, self.plan.max_calls)
        self.num_calls = before + region.num_told
        if region.has_told:
            self._blank = []


def _longest_first(texts: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted(set(texts), key=lambda text: (-len(text), text)))


def _without(text: str, words: tuple[str, ...]) -> str:
    for word in words:
        text = text.replace(word, "")
    return text

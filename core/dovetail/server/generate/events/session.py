"""Session: splits one answer's text into events that do not depend on how the text was cut.

Reasoning and tool parsers only define markers and parse one complete region; this file finds the
regions. The joined events depend on the joined text alone. Blanks around a region are layout. No
other text is lost: a region that is not a call becomes content. Stop strings are searched only in
content; what follows one is ignored.
"""

from __future__ import annotations

from dataclasses import replace

from dovetail.engine.client.results.stop import StopMatcher
from dovetail.interfaces.data.text import Layout, Markers, Tag, ToolCall
from dovetail.interfaces.tool_parser import MalformedToolCall, UnfinishedToolCall
from dovetail.server.generate.events.bare import OPENINGS, BareAnswer, knows_bare, may_name
from dovetail.server.generate.events.held import HeldCall
from dovetail.server.generate.events.matcher import (
    find_first,
    longest_first,
    partial_length,
    without,
    without_cut_marker,
)
from dovetail.server.generate.events.plan import SessionPlan
from dovetail.server.generate.events.region import Mark, Region, is_whole, only_closes
from dovetail.server.generate.events.speech import Speech
from dovetail.server.generate.events.types import ContentDelta, Event

FEED_CHARS = 4096
"""Longer text is processed in parts of this size, because pending text is copied at every
marker."""
MAX_REGION_ENDS = 8
"""How many end markers may occur in a call's strings before the region is given up."""
MAX_GIVEN_UP = 64
"""After this many regions that are not calls, the rest of an answer is content: each of them is
parsed again after its marker."""
MAX_TRIALS = 16
"""How many call markers inside open thinking are tried as its end."""


class Session:
    """The state machine of one answer. Call `feed` with text, then `finish` once."""

    def __init__(self, plan: SessionPlan) -> None:
        self.plan = plan
        self.num_calls = 0
        self._regions = plan.tool_parser.markers if plan.tool_parser else ()
        self._layout = longest_first(plan.layout)
        marks = {text for region in self._regions for text in (region.start, region.end)}
        self._layout_of_thoughts = tuple(word for word in self._layout if word not in marks)
        self._phase = "reasoning" if plan.reasoning and plan.starts_inside else "content"
        self._pending = ""
        stops = StopMatcher(plan.stops, includes_stop=plan.includes_stop)
        self._speech = Speech(stops, is_reasoning=self._phase == "reasoning")
        self._region: Region | None = None
        self._bare: BareAnswer | None = None
        self._may_be_bare = plan.reads_bare and knows_bare(plan.tool_parser, plan.tools)
        self._is_cut = False
        self._num_given_up = 0
        self._held: HeldCall | None = None
        self._trial: Session | None = None
        self._num_trials = 0
        self._is_closed_ahead = self._is_passing = False
        self._used_ids: set[str] = set()
        self._ends_of_none: list[str] = []

    @property
    def matched(self) -> str | None:
        """Return the stop string that ended the content, or None."""
        return self._speech.stops.matched

    @property
    def is_reasoning(self) -> bool:
        """Return whether the text so far ends inside a reasoning region."""
        return self._phase in ("reasoning", "held")

    @property
    def is_held(self) -> bool:
        """Return whether it is still undecided if the text so far is reasoning or a call."""
        return self._phase == "held"

    def feed(self, text: str, *, may_stop: bool = True) -> list[Event]:
        """Return the events that this text completes. Mutates: self

        A stop string that is completed while `may_stop` is false counts as ordinary text.
        """
        if self.plan.is_plain:
            return [ContentDelta(text=text)] if text else []
        self._speech.may_stop = may_stop
        events: list[Event] = []
        for start in range(0, len(text), FEED_CHARS):
            self._pending += text[start : start + FEED_CHARS]
            events += self._run(is_final=False)
        return events

    def finish(self, *, is_cut: bool = False) -> list[Event]:
        """Return the events for text that was held back. Mutates: self

        `is_cut`: a limit ended the answer, so an unclosed call stays unclosed.
        """
        self._is_cut = is_cut
        events = self._run(is_final=True)
        self._speech.finish()
        return events + self._speech.take()

    def _run(self, *, is_final: bool) -> list[Event]:
        more = True
        while more and self.matched is None:
            if self._phase == "region":
                more = self._step_region(is_final)
            elif self._phase == "reasoning":
                more = self._step_reasoning(is_final)
            elif self._phase == "held":
                more = self._step_held(is_final)
            elif self._phase == "bare":
                more = self._step_bare(is_final)
            else:
                more = self._step_content(is_final)
        return self._speech.take()

    def _next_marker(self, markers: Layout, is_final: bool) -> tuple[str, str] | None:
        """Return (text before, marker), removed from the pending text. If there is none, emit all
        text that cannot be part of a marker and return None."""
        match = find_first(self._pending, markers)
        if is_final and self._is_cut and match is None:
            starts = [region.start for region in self._regions if not region.opens_answer]
            tags = [word for word in self._layout if isinstance(word, Tag)]
            self._pending = without_cut_marker(self._pending, (*starts, *tags))
        num_pending = 0 if is_final else partial_length(self._pending, markers)
        safe = len(self._pending) - num_pending
        if match is None or (num_pending and safe <= match.start):
            text, self._pending = self._pending[:safe], self._pending[safe:]
            self._say(text)
            return None
        before, marker = self._pending[: match.start], self._pending[match.start : match.end]
        self._pending = self._pending[match.end :]
        return before, marker

    def _step_content(self, is_final: bool) -> bool:
        if self._opens_bare():
            assert self.plan.tool_parser is not None
            self._phase = "bare"
            self._bare = BareAnswer(self.plan.tool_parser, self.plan.tools)
            return True
        reasoning = self.plan.reasoning
        opening = (reasoning.start,) if reasoning else ()
        regions = [r for r in self._regions if not (r.opens_answer and self._speech.has_said)]
        starts = tuple(region.start for region in regions)
        found = self._next_marker((*starts, *opening, *self._layout), is_final)
        if found is None:
            return False
        before, marker = found
        self._say(before)
        which = starts.index(marker) if marker in starts else -1
        if which >= 0 and regions[which].opens_answer and self._speech.has_said:
            self._say(marker)
        elif which >= 0:
            self._open_region(regions[which])
        elif marker in opening:
            self._open_reasoning(marker)
        elif marker in self._ends_of_none:
            self._ends_of_none.remove(marker)
            self._say(marker)
        return True

    def _open_region(self, markers: Markers) -> None:
        if markers.stays:
            self._say(markers.start)
        self._region = self._region_of(markers)
        self._phase = "region"

    def _region_of(self, markers: Markers) -> Region:
        parser = self.plan.tool_parser
        assert parser is not None
        others = [m.start for m in parser.markers if not (m.opens_answer or m.is_body)]
        return Region(
            markers,
            others=(*others, markers.start),
            id_prefix=parser.id_prefix,
            id_digits=parser.id_digits,
            used_ids=self._used_ids,
        )

    def _open_reasoning(self, marker: str) -> None:
        reasoning = self.plan.reasoning
        if self._speech.has_said and not (reasoning and reasoning.may_reopen):
            self._say(marker)
            return
        self._speech.say_held()
        self._leave("reasoning")

    def _step_reasoning(self, is_final: bool) -> bool:
        assert self.plan.reasoning is not None
        markers = self.plan.reasoning
        if self._is_passing:
            return self._pass_marker(is_final)
        starts = self._calls_that_end_it(markers)
        words = (markers.end, markers.start, *starts, *self._layout_of_thoughts)
        found = self._next_marker(words, is_final)
        if found is None:
            return False
        before, marker = found
        self._say(before)
        if marker == markers.end:
            self._is_closed_ahead = False
            self._leave("content")
        elif marker in starts:
            self._hold(marker)
        elif marker == markers.start and self._speech.has_said:
            self._say(marker)
        return True

    def _calls_that_end_it(self, markers: Markers) -> tuple[str, ...]:
        """Return the call markers that may end thinking for which no closing marker was seen
        ahead."""
        if self._is_closed_ahead or self._num_trials >= MAX_TRIALS:
            return ()
        found = [region.start for region in self._regions if not region.opens_answer]
        if not markers.ends_with_call:
            found = [start for start in found if start in self.plan.special_starts]
        return tuple(start for start in found if start not in (markers.end, markers.start))

    def _hold(self, marker: str) -> None:
        """Hold back text that starts like a call until the thinking or the answer ends."""
        assert self.plan.reasoning is not None
        self._phase = "held"
        self._num_trials += 1
        self._held = HeldCall(self.plan.reasoning.end, {tool.name for tool in self.plan.tools})
        self._trial = Session(replace(self.plan, reasoning=None, stops=(), reads_bare=False))
        self._pending = marker + self._pending

    def _step_held(self, is_final: bool) -> bool:
        candidate, trial = self._held, self._trial
        assert candidate is not None
        assert trial is not None
        text, self._pending = self._pending, ""
        is_closed = candidate.read(text)
        if not is_closed and candidate.is_call is None:
            candidate.judge(trial.feed(text))
            candidate.judge(trial.finish(is_cut=self._is_cut) if is_final else ())
        if is_final and self._is_cut and not is_closed and candidate.is_call is None:
            return False
        is_none = candidate.is_call is False or (is_final and not candidate.is_call)
        if not (is_closed or is_none or is_final):
            return False
        self._pending, self._held, self._trial = candidate.whole(), None, None
        self._phase = "reasoning"
        self._is_closed_ahead = is_closed
        self._is_passing = is_none and not is_closed
        if not is_none and not is_closed:
            self._leave("content")
        return True

    def _pass_marker(self, is_final: bool) -> bool:
        """Skip the marker of something that is not a call. It may begin with layout."""
        text, layout = self._pending, self._layout_of_thoughts
        if not is_final and partial_length(text, layout) == len(text):
            return False
        found = find_first(text, layout)
        end = found.end if found and not found.start else 0
        self._say("" if end else text[:1])
        self._pending, self._is_passing = text[end or 1 :], False
        return True

    def _leave(self, phase: str) -> None:
        """Switch to the next region."""
        self._phase = phase
        self._speech.leave(is_reasoning=phase == "reasoning")

    def _say(self, text: str) -> None:
        self._speech.say(text, is_settled=self._is_settled())

    def _opens_bare(self) -> bool:
        """Return whether an answer starts here that may consist only of calls."""
        if not self._may_be_bare or self._speech.has_answered or self.num_calls:
            return False
        first = self._pending.lstrip()[:1]
        openings = [r.start[:1] for r in self._regions if r.opens_answer and r.is_body]
        return first in OPENINGS and first not in openings

    def _step_bare(self, is_final: bool) -> bool:
        bare = self._bare
        assert bare is not None
        text, self._pending = self._pending, ""
        can_be = bare.read(text)
        if can_be and not is_final:
            return False
        calls = bare.calls() if can_be else []
        self._bare, self._phase, self._may_be_bare = None, "content", False
        if calls:
            self._tell(self._region_of(Markers(start="")), calls)
        else:
            self._pending = bare.whole()
        return not calls

    def _is_settled(self) -> bool:
        """Return whether only content can follow, so that blanks need not be held back."""
        reasoning = self.plan.reasoning
        can_think = reasoning is not None and reasoning.may_reopen
        is_content = self._phase == "content" and not can_think
        return is_content and all(region.opens_answer for region in self._regions)

    def _step_region(self, is_final: bool) -> bool:
        region = self._region
        assert region is not None
        text, self._pending = self._pending, ""
        mark = region.read(text, is_final=is_final)
        if mark is None and not is_final:
            return self._look(region)
        if mark is None:
            return self._end_unmarked(region, self._syntax_end(region, region.whole()))
        if mark.opens:
            return self._end_implied(region, mark)
        body = region.body()
        calls, can_grow = self._parse(body)
        if calls is None and can_grow and region.num_ends < MAX_REGION_ENDS:
            self._pending = mark.rest
            return True
        return self._close_region(region, calls, body, mark.rest)

    def _end_implied(self, region: Region, mark: Mark) -> bool:
        """Close a region with complete calls but no end marker, because another region opens."""
        body = region.body()
        calls, can_grow = self._parse(body)
        begun = self._begun(body) or []
        if calls is None and not can_grow and all(map(is_whole, begun)):
            calls = begun
        if not calls or not only_closes(calls, begun):
            self._pending = mark.rest
            return True
        return self._close_region(region, calls, body, mark.text + mark.rest)

    def _end_unmarked(self, region: Region, at: int | None) -> bool:
        """Close a region without an end marker: at this position, or at the end of the text."""
        rest = "" if at is None else region.cut(at)
        body = region.whole()
        is_cut = self._is_cut and at is None
        calls = self._parse(body)[0]
        if is_cut and any(call.name for call in calls or ()):
            calls = None
        if is_cut and calls is None and self._is_head(region, body):
            self._region, self._phase = None, "content"
            return False
        if calls is not None or is_cut or region.num_ends == 0:
            may_be_cut = calls is None and at is None
            return self._close_region(region, calls, body, rest, may_be_cut=may_be_cut)
        self._tell(region, self._begun(body) or [])
        if not region.has_told:
            body, behind = region.at_first_end()
            calls = self._closed(body)
            rest = behind if calls else ""
        return self._close_region(region, calls, body, rest)

    def _is_head(self, region: Region, body: str) -> bool:
        """Return whether a truncated answer ends within a call's head, which must not be shown."""
        assert self.plan.tool_parser is not None
        is_known = "streams" in self.plan.tool_parser.capabilities
        if not is_known or region.has_told or region.num_ends:
            return False
        begun = self._begun(body)
        is_begun = begun is not None and not any(call.name for call in begun)
        return is_begun and (not region.markers.opens_answer or may_name(body, self.plan.tools))

    def _syntax_end(self, region: Region, body: str) -> int | None:
        """Return the end position of a region without an end marker, or None."""
        assert self.plan.tool_parser is not None
        return None if region.markers.end else self.plan.tool_parser.region_end(body)

    def _look(self, region: Region) -> bool:
        """Emit the growth of the region's calls, or give the region up as plain text."""
        body = region.growing_body()
        if body is None:
            return False
        at = self._syntax_end(region, body)
        if at is not None:
            return self._end_unmarked(region, at)
        calls = self._begun(body)
        if calls is not None:
            self._tell(region, calls, is_growing=True)
        elif not region.has_told:
            return self._give_up(region, "")
        return False

    def _close_region(
        self,
        region: Region,
        calls: list[ToolCall] | None,
        body: str,
        rest: str,
        *,
        may_be_cut: bool = False,
    ) -> bool:
        """Emit the region's calls (or those at the start of its body), and the rest as content.
        Give the region up if it has neither."""
        found = calls or self._begun(body) or []
        self._tell(region, found, may_be_cut=may_be_cut)
        untold = region.untold(found)
        if not region.has_told and not (calls and untold):
            return self._give_up(region, rest)
        self._region = None
        self._leave("content")
        if untold:
            self._say(without(untold, self._layout))
        self._pending = rest
        return bool(self._pending)

    def _give_up(self, region: Region, rest: str) -> bool:
        """Treat a region's markers as plain text, and parse the text after the opening one."""
        self._phase, self._region = "content", None
        self._num_given_up += 1
        self._ends_of_none.append(region.markers.end)
        if not region.markers.stays:
            self._say(region.markers.start)
        self._pending = region.unread() + rest
        if self._num_given_up >= MAX_GIVEN_UP:
            self._regions = ()
        return bool(self._pending)

    def _parse(self, body: str) -> tuple[list[ToolCall] | None, bool]:
        """Return (calls or None, whether more text could make the body a call)."""
        assert self.plan.tool_parser is not None
        try:
            return self.plan.tool_parser.parse(body, self.plan.tools), False
        except UnfinishedToolCall:
            return None, True
        except MalformedToolCall:
            return None, False

    def _closed(self, body: str) -> list[ToolCall] | None:
        """Return the calls of a body that ends within a value, or None."""
        assert self.plan.tool_parser is not None
        try:
            return self.plan.tool_parser.close(body, self.plan.tools)
        except MalformedToolCall:
            return None

    def _begun(self, body: str) -> list[ToolCall] | None:
        """Return the calls at the start of a body, or None if it cannot contain any."""
        assert self.plan.tool_parser is not None
        try:
            return self.plan.tool_parser.so_far(body, self.plan.tools)
        except UnfinishedToolCall:
            return []
        except MalformedToolCall:
            return None

    def _tell(self, region: Region, calls: list[ToolCall], **how: bool) -> None:
        before = self.num_calls - region.num_told
        events = region.tell(calls, before, self.plan.max_calls, **how)
        self._speech.add(events)
        self.num_calls = before + region.num_told
        if region.has_told:
            self._speech.set_apart()

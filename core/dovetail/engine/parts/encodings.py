"""Encodings: which media the ranks have encoded, and how many more fit into a step.

An image is encoded before its first position is computed, once for all requests that contain it,
and cached until its room is needed. The encoder pass takes one step, or several while other
requests decode, one medium after another. Knows only keys and row counts; the model does the
encoding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from dovetail.engine.active_request import ActiveRequest, ActiveRequests, crowd_of
from dovetail.engine.parts.encoder_split import EncoderSplit
from dovetail.engine.parts.part import EnginePart, StepRecord
from dovetail.engine.request import NO_ROW, Request
from dovetail.interfaces.data.media import VECTORS, Encode, PartPlace, PromptPart
from dovetail.interfaces.data.schedule_spec import ScheduleSpec
from dovetail.interfaces.data.step import StepPlan

MOST_IN_VAIN = 8
"""After this many plans without a row while a pass waited for its next step, it is not split."""


class _Begun:
    """An encoder pass split over several steps. `share` of it has been sent, `planned` includes the
    step being planned. `askers` are the requests that wait for it."""

    __slots__ = ("askers", "part", "planned", "share")

    def __init__(self, part: PromptPart) -> None:
        self.part = part
        self.share = self.planned = 0.0
        self.askers: set[Request] = set()

    def plan_entry(self, share: float) -> Encode:
        """Return its entry in a plan. Mutates: share"""
        place, is_new = self.part.place, self.share == 0
        self.share = share
        features = self.part.features if is_new else ()
        return Encode(place.key, place.kind, place.num_rows, features, share)


class Encodings(EnginePart):
    """The encodings of one engine. A step encodes media of at most `step_rows` rows, and the ranks
    cache at most `kept_rows`; a single medium may exceed both. With `keeps_whole` a step computes
    all remaining positions of a medium, or none. `crowd` returns how many requests are running and
    how many wait. While requests decode, an encoder pass is split over steps by `split`."""

    def __init__(
        self,
        step_rows: int,
        kept_rows: int,
        *,
        keeps_whole: bool = False,
        crowd: Callable[[], tuple[int, int]] = lambda: (0, 0),
    ) -> None:
        self.split = EncoderSplit()
        self._active: ActiveRequests = {}
        self._num_with_parts = 0
        self._crowd = crowd
        self._begun: _Begun | None = None
        self._weight: float | None = None
        self._num_in_vain = 0
        self._keeps_whole = keeps_whole
        self._step_rows = step_rows
        self._kept_rows = kept_rows
        self._kept: dict[str, int] = {}
        self._users: dict[str, set[Request]] = {}
        self._reserved: dict[str, int] = {}
        self._dropped: list[str] = []
        self.num_encoded = 0
        self.num_reused = 0

    @classmethod
    def within(cls, limits: ScheduleSpec, active: ActiveRequests) -> Encodings:
        """Return the encodings of an engine with these limits and requests."""
        encodings = cls(
            limits.encoder_rows,
            limits.kept_encoder_rows,
            keeps_whole=limits.keeps_parts_whole,
            crowd=lambda: crowd_of(active),
        )
        encodings._active = active
        return encodings

    @property
    def has_dropped(self) -> bool:
        """Return whether there are dropped encodings that no plan has sent to the ranks yet."""
        return bool(self._dropped)

    def receive(self, active: ActiveRequest) -> None:
        """Have a request's steps wait for its media. Mutates: active"""
        active.request.encodings = self

    def begin(self, active: ActiveRequest, num_unfinished: int) -> None:
        """Count a request with media. Mutates: self"""
        self._num_with_parts += bool(active.request.parts)

    def end(self, active: ActiveRequest) -> None:
        """Drop an ended request's uses of encodings. Mutates: self"""
        if active.request.parts:
            self._num_with_parts -= 1
            self.release(active.request)

    def complete(self, plan: StepPlan) -> StepPlan:
        """Return the plan with the encodings that its rows need and those to drop. Mutates: self"""
        if not self._num_with_parts and not self.has_dropped:
            return plan
        requests = {active.request.row: active.request for active in self._active.values()}
        return self.take(plan, [requests[row.row] for row in plan.rows])

    def note(self, step: StepRecord) -> None:
        """Learn how long a step with or without an encoder takes. Mutates: self"""
        self.split.note(step.plan, step.took_s)

    def forget_memory(self) -> None:
        """Drop all encodings that the ranks have cached. Mutates: self"""
        self._dropped += self._kept
        self._kept.clear()
        self._users.clear()
        if self._begun is not None:
            self._drop_begun(self._begun)

    def distrust(self, request_ids: Iterable[str]) -> None:
        """Encode media again, also those that a running request is in the middle of."""
        self.forget_memory()

    def begin_step(self) -> None:
        """Reset the counts of a step's encodings. Mutates: self"""
        self._reserved.clear()
        self._num_in_vain += bool(self._weight)
        self._weight = None
        if self._begun is not None:
            self._begun.planned = self._begun.share

    def reach(self, request: Request, start: int, num_tokens: int) -> int:
        """Return how many of a request's tokens from `start` this step can compute: all before the
        first medium that must wait for its encoding. Mutates: self, what this step has room for"""
        end = start + num_tokens
        for part in request.parts:
            place = part.place
            is_met = place.start < end and place.end > start if place.runs else start < end
            is_cut = self._keeps_whole and place.kind != VECTORS and place.end > end
            if is_met and (is_cut or not self._reserve(request, part)):
                return max(0, place.start - start)
        return num_tokens

    def take(self, plan: StepPlan, requests: Sequence[Request]) -> StepPlan:
        """Return the plan with the encodings that its rows need and those to drop. `requests` are
        the requests of its rows. Mutates: self"""
        self._num_in_vain, self._weight = 0, None
        encode: dict[str, Encode] = {}
        starting = {row.row for row in plan.new_rows}
        for row, request in zip(plan.rows, requests, strict=True):
            end = row.start + row.num_tokens
            for part in request.parts:
                place = part.place
                if place.runs:
                    is_met = place.start < end and place.end > row.start
                else:
                    is_met = row.row in starting
                if not is_met:
                    continue
                users = self._users.setdefault(place.key, set())
                if place.key not in self._kept:
                    encode[place.key] = self._whole(part)
                elif request not in users:
                    self.num_reused += 1
                if end >= place.end:
                    users.discard(request)
                else:
                    users.add(request)
                self._kept[place.key] = self._kept.pop(place.key)  # most recently used last
        self._go_on(encode)
        if not encode and not self._dropped:
            return plan
        dropped, self._dropped = tuple(self._dropped), []
        return msgspec.structs.replace(
            plan, encode=tuple(encode.values()), dropped_encodings=dropped
        )

    def release(self, request: Request) -> None:
        """Drop an ended request's uses of encodings. Mutates: self"""
        for part in request.parts:
            self._users.get(part.place.key, set()).discard(request)
        begun = self._begun
        if begun is not None:
            begun.askers.discard(request)
            if not begun.askers:
                self._drop_begun(begun)

    def _reserve(self, request: Request, part: PromptPart) -> bool:
        """Return whether this step may use a medium's encoding. Mutates: self"""
        place, begun = part.place, self._begun
        if place.key in self._kept or place.key in self._reserved:
            return True
        is_begun = begun is not None and begun.part.place.key == place.key
        if not is_begun and not self._has_room(place):
            return False
        if not part.is_ready and self._requests_per_answer():
            if begun is None and self._share(place) < 1:
                begun = self._begun = _Begun(part)
                is_begun = True
            if begun is not None:
                if is_begun:
                    begun.askers.add(request)
                if begun.planned == begun.share:  # only once per step
                    begun.planned = min(1.0, begun.share + self._share(begun.part.place))
                if begun.planned < 1 or not (is_begun or self._share(place) == 1):
                    return False
        self._reserved[place.key] = place.num_rows
        return True

    def _has_room(self, place: PartPlace) -> bool:
        """Return whether a medium fits into this step's encoder budget and into the cache, next to
        the encodings in use."""
        reserved = sum(self._reserved.values())
        if self._reserved and reserved + place.num_rows > self._step_rows:
            return False
        used = sum(rows for key, rows in self._kept.items() if self._is_used(key)) + reserved
        used += self._begun_rows
        return not used or used + place.num_rows <= self._kept_rows

    def _requests_per_answer(self) -> float:
        """Return the number of waiting requests per running one. 0 if none is running or if the
        running ones get no steps: then passes are not split."""
        if self._weight is None:
            answered, waiting = self._crowd()
            is_vain = self._num_in_vain >= MOST_IN_VAIN or not answered
            self._weight = 0.0 if is_vain else max(1, waiting) / answered
        return self._weight

    def _share(self, place: PartPlace) -> float:
        """Return the share of a medium's encoder pass that this step computes."""
        return self.split.share(place.kind, place.num_rows, weight=self._requests_per_answer())

    def _go_on(self, encode: dict[str, Encode]) -> None:
        """Add the planned piece of the pass in progress. Mutates: encode, self"""
        begun = self._begun
        if begun is None or begun.planned == begun.share:
            return
        key = begun.part.place.key
        if begun.planned < 1:
            encode[key] = begun.plan_entry(begun.planned)
        else:
            self._users.setdefault(key, set()).update(begun.askers)
            encode[key] = self._whole(begun.part)

    def _whole(self, part: PromptPart) -> Encode:
        """Return the plan entry that encodes a medium, or the rest of it. Mutates: self"""
        place, begun = part.place, self._begun
        if begun is None or begun.part.place.key != place.key:
            begun = _Begun(part)
        else:
            self._begun = None
        self._make_room(place.num_rows)
        self._kept[place.key] = place.num_rows
        self.num_encoded += 1
        return begun.plan_entry(1.0)

    def _drop_begun(self, begun: _Begun) -> None:
        """End a pass that no request waits for. Mutates: self"""
        if begun.share:
            self._dropped.append(begun.part.place.key)
        self._begun = None

    @property
    def _begun_rows(self) -> int:
        """Return the rows that the pass in progress will need, unless this step counts them."""
        place = None if self._begun is None else self._begun.part.place
        return 0 if place is None or place.key in self._reserved else place.num_rows

    def _make_room(self, num_rows: int) -> None:
        """Evict unused encodings, least recently used first. Mutates: self"""
        missing = sum(self._kept.values()) + self._begun_rows + num_rows - self._kept_rows
        for key in list(self._kept):
            if missing <= 0:
                return
            if not self._is_used(key) and key not in self._reserved:
                missing -= self._kept.pop(key)
                self._users.pop(key, None)
                self._dropped.append(key)

    def _is_used(self, key: str) -> bool:
        """Return whether a running request is in the middle of this medium."""
        return any(request.row != NO_ROW for request in self._users.get(key, ()))

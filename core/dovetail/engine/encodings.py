"""Encodings: which contents the ranks have encoded, and how many more they may in a step.

An image's vectors are made in the step that computes the first of its positions, once however many
requests show it, and kept until their room is needed. Knows keys and numbers of rows; what makes
vectors of features is the model's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from dovetail.interfaces.media import VECTORS, Encode, PartPlace
from dovetail.interfaces.step import StepPlan

if TYPE_CHECKING:
    from dovetail.engine.request import Request

NO_ROW = -1


class Encodings:
    """The encodings of one engine. A step encodes contents of at most `step_rows` rows and the
    ranks keep at most `kept_rows`; one content alone may have more. With `keeps_whole` a step
    computes all positions of a part that are left, or none."""

    def __init__(self, step_rows: int, kept_rows: int, *, keeps_whole: bool = False) -> None:
        self._keeps_whole = keeps_whole
        self._step_rows = step_rows
        self._kept_rows = kept_rows
        self._kept: dict[str, int] = {}
        self._users: dict[str, set[Request]] = {}
        self._reserved: dict[str, int] = {}
        self._dropped: list[str] = []
        self.num_encoded = 0
        self.num_reused = 0

    def begin_step(self) -> None:
        """Start to count a step's encodings. Mutates: self"""
        self._reserved.clear()

    def reach(self, request: Request, start: int, num_tokens: int) -> int:
        """Return how many of a request's tokens from `start` on this step can compute: all before
        the first part whose encoding must wait. Mutates: self, what this step has room for"""
        end = start + num_tokens
        for part in request.parts:
            place = part.place
            is_met = place.start < end and place.end > start if place.runs else start < end
            is_cut = self._keeps_whole and place.kind != VECTORS and place.end > end
            if is_met and (is_cut or not self._reserve(place)):
                return max(0, place.start - start)
        return num_tokens

    def take(self, plan: StepPlan, requests: Sequence[Request]) -> StepPlan:
        """Return a plan with the encodings that its rows need and those that may be forgotten.
        `requests` are those of its rows. Mutates: self"""
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
                    self._make_room(place.num_rows)
                    self._kept[place.key] = place.num_rows
                    encode[place.key] = Encode(place.key, place.kind, place.num_rows, part.features)
                    self.num_encoded += 1
                elif request not in users:
                    self.num_reused += 1
                if end >= place.end:
                    users.discard(request)
                else:
                    users.add(request)
                self._kept[place.key] = self._kept.pop(place.key)  # the one used last is the last
        if not encode and not self._dropped:
            return plan
        dropped, self._dropped = tuple(self._dropped), []
        return msgspec.structs.replace(
            plan, encode=tuple(encode.values()), dropped_encodings=dropped
        )

    def release(self, request: Request) -> None:
        """Forget what an ended request used. Mutates: self"""
        for part in request.parts:
            self._users.get(part.place.key, set()).discard(request)

    def forget_all(self) -> None:
        """Count on nothing that the ranks kept. Mutates: self"""
        self._dropped += self._kept
        self._kept.clear()
        self._users.clear()

    def _reserve(self, place: PartPlace) -> bool:
        """Return whether this step may use a content's encoding. Mutates: self"""
        if place.key in self._kept or place.key in self._reserved:
            return True
        reserved = sum(self._reserved.values())
        if self._reserved and reserved + place.num_rows > self._step_rows:
            return False
        used = sum(rows for key, rows in self._kept.items() if self._is_used(key)) + reserved
        if used and used + place.num_rows > self._kept_rows:
            return False
        self._reserved[place.key] = place.num_rows
        return True

    def _make_room(self, num_rows: int) -> None:
        """Drop encodings that nobody uses, those not used for longest first. Mutates: self"""
        missing = sum(self._kept.values()) + num_rows - self._kept_rows
        for key in list(self._kept):
            if missing <= 0:
                return
            if not self._is_used(key) and key not in self._reserved:
                missing -= self._kept.pop(key)
                self._users.pop(key, None)
                self._dropped.append(key)

    def _is_used(self, key: str) -> bool:
        """Return whether a running request is in the middle of this content."""
        return any(request.row != NO_ROW for request in self._users.get(key, ()))

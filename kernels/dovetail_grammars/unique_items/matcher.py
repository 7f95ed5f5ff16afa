"""UniqueMatcher: enforces `uniqueItems` on top of a backend that does not.

It parses the answer (AnswerParser) and removes two kinds of tokens from the backend's mask: those
that would complete a duplicate item, and those after which only a duplicate could follow. For the
latter it tries continuations on the backend's own matcher.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np

from dovetail_grammars.errors import InvalidConstraint
from dovetail_grammars.unique_items.answer import AnswerParser, Readings
from dovetail_grammars.unique_items.json_place import Duplicate, JsonPlace, Level, Mode
from dovetail_grammars.unique_items.tokens import TokenIndex

KEPT = 512
"""The number of tokens that can be rolled back without reading the answer again."""
MAX_TRIED = 200
"""The maximum number of places to try for a continuation; beyond that one is assumed to exist."""
NUM_BYTES = 1 << 16
_IN_STRING = (Mode.STRING, Mode.STRING_ESCAPE, Mode.IN_NAME, Mode.NAME_ESCAPE)
_NAMES = (Mode.IN_NAME, Mode.NAME_ESCAPE)
_ESCAPED = (Mode.STRING_ESCAPE, Mode.NAME_ESCAPE)


class Matcher(Protocol):
    """A backend's state of one answer, as of dovetail.interfaces.structured_output."""

    def accept(self, token_id: int) -> bool: ...
    def fill(self, mask: np.ndarray) -> None: ...
    def is_complete(self) -> bool: ...
    def forced(self) -> Sequence[int]: ...
    def rollback(self, num_tokens: int) -> None: ...


class LoadedConstraint(Protocol):
    """A backend's constraint that is ready for matching."""

    num_bytes: int

    def matcher(self) -> Matcher: ...


class UniqueConstraint:
    """A loaded constraint with lists of unique items."""

    def __init__(self, inner: LoadedConstraint, answer: AnswerParser, index: TokenIndex) -> None:
        self._inner = inner
        self._answer = answer
        self._index = index
        self.num_bytes = inner.num_bytes + NUM_BYTES

    def matcher(self) -> Matcher:
        """Return a matcher at the start of an answer."""
        return UniqueMatcher(self._inner.matcher(), self._answer, self._index)


class UniqueMatcher:
    """A backend's matcher, and the readings of the answer after each of the last tokens."""

    def __init__(self, inner: Matcher, answer: AnswerParser, index: TokenIndex) -> None:
        self._inner = inner
        self._answer = answer
        self._index = index
        self._token_ids: list[int] = []
        self._readings: list[Readings] = [answer.beginning]

    def accept(self, token_id: int) -> bool:
        """Advance by a token if the constraint allows it. Raises: InvalidConstraint"""
        if token_id in self._index.eos_ids:
            return self._inner.accept(token_id)
        try:
            readings = self._behind(self._readings[-1], token_id)
        except Duplicate:
            return False
        if not self._inner.accept(token_id):
            return False
        if not readings:
            raise InvalidConstraint("the answer cannot be followed for uniqueItems")
        self._token_ids.append(token_id)
        self._readings.append(readings)
        if len(self._readings) > 2 * KEPT:
            del self._readings[:KEPT]
        return True

    def fill(self, mask: np.ndarray) -> None:
        """Set the bits of tokens that may follow. Raises: InvalidConstraint. Mutates: mask"""
        self._inner.fill(mask)
        readings = self._readings[-1]
        refused = [i for i in self._doubtful(readings, mask) if not self._may_follow(readings, i)]
        if not refused:
            return
        for token_id in refused:
            mask[token_id // 32] &= ~(np.uint32(1) << np.uint32(token_id % 32))
        if not mask.any():
            raise InvalidConstraint("no other item can follow in a list of different items")

    def is_complete(self) -> bool:
        """Return whether only the end may follow."""
        return self._inner.is_complete()

    def forced(self) -> Sequence[int]:
        """Return tokens that must follow."""
        readings, found = self._readings[-1], []
        for token_id in self._inner.forced():
            try:
                readings = self._behind(readings, token_id)
            except Duplicate:
                break
            found.append(token_id)
        return found

    def rollback(self, num_tokens: int) -> None:
        """Roll back the last accepted tokens."""
        self._inner.rollback(num_tokens)
        if not num_tokens:
            return
        del self._token_ids[-num_tokens:]
        del self._readings[-num_tokens:]
        if not self._readings:
            self._readings = [self._answer.beginning]
            for token_id in self._token_ids:
                self._readings.append(self._behind(self._readings[-1], token_id))

    def _behind(self, readings: Readings, token_id: int) -> Readings:
        """Return the readings after a token. Raises: Duplicate"""
        text = self._index.texts[token_id]
        return self._answer.read(readings, text) if text else readings

    def _doubtful(self, readings: Readings, mask: np.ndarray) -> list[int]:
        """Return the allowed tokens that may complete a duplicate item or make one unavoidable."""
        index, allowed = self._index, self._allowed(mask)
        doubtful = np.zeros(len(allowed), dtype=bool)
        for place in _places(readings):
            doubtful |= index.spans
            if any(level.items is not None for level in place.levels):
                doubtful |= self._ends(place)
                doubtful[list(self._on_the_way(place))] = True
        found: list[int] = np.flatnonzero(allowed & doubtful).tolist()
        return found

    def _allowed(self, mask: np.ndarray) -> np.ndarray:
        """Return the tokens whose bits are set. Shapes: [ceil(V / 32)] uint32 -> [V] bool"""
        bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
        return bits[: len(self._index.texts)].astype(bool)

    def _ends(self, place: JsonPlace) -> np.ndarray:
        """Return the tokens that may end an item at a place. Shapes: [V] bool"""
        index = self._index
        if _is_roomy(place):
            return index.in_roomy if place.mode in _IN_STRING else index.roomy
        if place.mode not in _IN_STRING:
            return index.elsewhere
        is_item = place.mode not in _NAMES and place.levels[-1].items is not None
        return index.in_string if is_item else index.in_member

    def _on_the_way(self, place: JsonPlace) -> Iterator[int]:
        """Yield the tokens that continue the text of an item in the list."""
        index, is_string = self._index, place.mode in _IN_STRING
        for level, text in place.lists():
            for item in level.items or ():
                if not item.startswith(text):
                    continue
                rest = item[len(text) :]
                if is_string:
                    rest = rest[: _string_end(rest, is_escaped=place.mode in _ESCAPED)]
                    yield from index.beginning(rest)
                if not _is_roomy(place):
                    yield from index.within(rest)
        if place.mode is Mode.SCALAR and place.text.endswith(b"-"):
            yield from index.beginning(b"0")  # -0 is 0
        elif not is_string:
            yield from index.beginning(b"-0")

    def _may_follow(self, readings: Readings, token_id: int) -> bool:
        try:
            behind = self._behind(readings, token_id)
        except Duplicate:
            return False
        if not _is_narrow(behind):
            return True
        return self._leads_on(token_id, behind, _Search())

    def _leads_on(self, token_id: int, behind: Readings, search: _Search) -> bool:
        """Return whether another item can be completed after a token."""
        if behind in search.seen:
            return False
        search.seen.add(behind)
        if len(search.seen) > MAX_TRIED:
            return True
        if not self._inner.accept(token_id):
            return False
        try:
            return self._has_way(behind, search)
        finally:
            self._inner.rollback(1)

    def _has_way(self, readings: Readings, search: _Search) -> bool:
        """Return whether some token leads away from the items of the list."""
        mask = np.zeros(-(-len(self._index.texts) // 32), dtype=np.uint32)
        self._inner.fill(mask)
        narrow: list[tuple[int, Readings]] = []
        for found in np.flatnonzero(self._allowed(mask)):
            token_id = int(found)  # one by one, since the first nearly always leads away
            try:
                behind = self._behind(readings, token_id)
            except Duplicate:
                continue
            if not _is_narrow(behind):
                return True
            narrow.append((token_id, behind))
        return any(self._leads_on(token_id, behind, search) for token_id, behind in narrow)


class _Search:
    """The readings already tried in a search for a continuation."""

    def __init__(self) -> None:
        self.seen: set[Readings] = set()


def _places(readings: Readings) -> Iterator[JsonPlace]:
    return (reading.now for reading in readings if isinstance(reading.now, JsonPlace))


def _is_narrow(readings: Readings) -> bool:
    """Return whether an item starts like another of its list, and may have to end like it."""
    return any(
        _is_same_way(level, text) and not _is_roomy(place)
        for place in _places(readings)
        for level, text in place.lists()
    )


def _is_same_way(level: Level, text: bytes) -> bool:
    if not text and level.shape.items.is_endless:
        return False
    return any(item.startswith(text) for item in level.items or ())


def _is_roomy(place: JsonPlace) -> bool:
    """Return whether the only list of unique items contains arbitrary strings."""
    levels = [level for level in place.levels if level.items is not None]
    return len(levels) == 1 and levels[0].shape.items.is_roomy


def _string_end(text: bytes, *, is_escaped: bool) -> int:
    """Return the end of a string, including its quotation mark, in the rest of an item."""
    at = 1 if is_escaped else 0
    while at < len(text):
        if text[at : at + 1] == b"\\":
            at += 2
            continue
        if text[at : at + 1] == b'"':
            return at + 1
        at += 1
    return len(text)

"""EarlyClose: finds a short way from inside a constrained text to its end, by trying tokens.

Used near max_tokens, so that a truncated answer is complete. A greedy walk closes JSON: closing
characters first, then the shortest values. Where it does not end, as in texts of lines, a search
tries what may end a line and what may begin one. Independent of schemas and grammars.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from dovetail_grammars.errors import InvalidConstraint

WINDOW_TOKENS = 128
"""The search for an end starts this many tokens before max_tokens; longer ways are missed."""
SPARE_TOKENS = 8
"""The safety margin in tokens, since one more plain token may need several others."""
MAX_TRIED = 24
MAX_SEARCHED = 512
"""How many states a search looks at."""
OFTEN_TOKENS = 48
EVERY_TOKENS = 8
"""A search is made every 8 tokens, and for each of the last 48; its margin allows for that."""
MAX_REMEMBERED = 1024
_PLAIN = frozenset(range(256)) - frozenset(b'"[{,:')
_CLOSERS = frozenset(b'"]}')
_SHORT = (b"0", b"1", b"null", b"true", b"false", b'""', b"[", b"{", b":", b",", b'"')
_MAX_CHOICES = 64
"""Where more first bytes are allowed than these, only the tokens of `_LEAVING` are tried."""
_LEAVING = (b"\n", *rb"""\n \ " ' ` ] } ) > ; < | / * # . a""".split())

_ESCAPED = frozenset(b"n\\")
"""Where these and few other bytes are allowed, a backslash is before them; "n" ends a line."""


Ways = dict[int, list[int]]
"""The way to the end that a search found, by the fingerprint of the mask at its beginning."""


class Vocabulary(Protocol):
    """The bytes of each token, empty for tokens without text; which tokens end an answer."""

    @property
    def tokens(self) -> Sequence[bytes]: ...

    @property
    def eos_ids(self) -> tuple[int, ...]: ...

    @property
    def mask_words(self) -> int: ...


class Matcher(Protocol):
    """The state of one answer, as `dovetail.interfaces.structured_output` describes it."""

    def accept(self, token_id: int, /) -> bool: ...

    def fill(self, mask: np.ndarray, /) -> None: ...

    def is_complete(self) -> bool: ...

    def forced(self) -> Sequence[int]: ...

    def rollback(self, num_tokens: int, /) -> None: ...


class EarlyClose:
    """The order in which the tokens of a vocabulary are tried; shared by all rows."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._num_words = vocabulary.mask_words
        self._tokens = tokens = vocabulary.tokens
        closing = [i for i, text in enumerate(tokens) if text and _CLOSERS.issuperset(text)]
        closing.sort(key=lambda i: -len(tokens[i]))
        by_text = {text: i for i, text in enumerate(tokens) if text in _SHORT}
        short = [by_text[text] for text in _SHORT if text in by_text]
        by_length = sorted(
            (i for i, text in enumerate(tokens) if text), key=lambda i: len(tokens[i])
        )
        rest = [i for i in by_length if tokens[i].strip()]
        self._order = np.array([*closing, *short, *rest], dtype=np.int64)
        quotes = [i for i in closing if tokens[i].startswith(b'"')]
        self._order_in_text = np.array([*quotes, *self._order], dtype=np.int64)
        self._num_in_text = len(tokens) // 4
        self._ends = np.array(vocabulary.eos_ids, dtype=np.int64)
        # Plain tokens make the way to the end at most a few tokens longer. Tokens that may open
        # something are tried one by one, short ones first.
        opening = [i for i in self._order.tolist() if not _PLAIN.issuperset(tokens[i])]
        self._opening = np.array(list(dict.fromkeys(opening)), dtype=np.int64)
        plain = np.array([bool(t) and _PLAIN.issuperset(t) for t in tokens], dtype=bool)
        plain[self._ends] = True
        bits = np.zeros(self._num_words * 32, dtype=np.uint8)
        bits[: len(plain)] = plain
        self._plain = np.packbits(bits, bitorder="little").view(np.uint32)
        # Tokens that are no text, such as special tokens, are each a kind of their own; the others
        # are of their first byte's kind, where all bytes of other characters than ASCII are one.
        others = [i for i, text in enumerate(tokens) if not text and i not in vocabulary.eos_ids]
        kinds = [*((min(tokens[i][0], 128), i) for i in by_length), *((256 + i, i) for i in others)]
        kinds.sort(key=lambda kind: kind[0])
        self._by_kind = np.array([i for _, i in kinds], dtype=np.int64)
        self._kinds, starts = np.unique([kind for kind, _ in kinds], return_index=True)
        self._kind_bounds = np.append(starts, len(kinds))
        by_text = {text: i for i, text in enumerate(tokens) if text in _LEAVING}
        leaving = [by_text[text] for text in _LEAVING if text in by_text]
        self._leaving = np.array(leaving, dtype=np.int64)
        self._branches_of: dict[int, list[int]] = {}

    def path(self, matcher: Matcher, max_tokens: int) -> list[int] | None:
        """Return at most `max_tokens` tokens after which the answer may end, or None.

        The matcher's state is unchanged afterwards.
        """
        return self._path(matcher, max_tokens, {}, searches=True)[0]

    def _path(
        self, matcher: Matcher, max_tokens: int, ways: Ways, *, searches: bool
    ) -> tuple[list[int] | None, bool]:
        """Return a path, and whether it was not the greedy walk that found it. Mutates: ways"""
        trail = _Trail(matcher, self._num_words, ways)
        try:
            found, is_lost = self._walk(trail, max_tokens)
            if found is None and is_lost and searches:
                found = self._search(trail, max_tokens)
            return (None if found is None else found.copy()), is_lost
        finally:
            trail.back_to(0)

    def _walk(self, trail: _Trail, max_tokens: int) -> tuple[list[int] | None, bool]:
        """Return the greedy way, if any, and whether the walk is lost: it goes in circles, or a
        search found the way earlier. Mutates: trail"""
        steps: Counter[int] = Counter()
        while trail.follow_forced() and len(trail.taken) <= max_tokens:
            mask = trail.mask()
            if self._may_end(mask):
                return trail.taken, False
            if not steps and (known := self._known(trail, mask, max_tokens)):
                return known, True
            num_allowed = int(np.unpackbits(mask.view(np.uint8)).sum())
            steps[num_allowed] += 1
            # In a string, brackets are only text: the quotation mark comes first.
            in_text = num_allowed > self._num_in_text
            order = self._order_in_text if in_text else self._order
            allowed = _bits(mask, order)
            is_stuck = not allowed.any()
            if is_stuck or len(trail.taken) >= max_tokens:
                return None, is_stuck or 2 * len(steps) <= steps.total()
            if not trail.accepts(int(order[int(allowed.argmax())])):
                break
        return None, True

    def _known(self, trail: _Trail, mask: np.ndarray, max_tokens: int) -> list[int] | None:
        """Return the way that a search found where the same tokens were allowed, if it leads to the
        end here too."""
        way = trail.ways.get(_fingerprint(mask)) if trail.ways else None
        start = len(trail.taken)
        if way is None or start + len(way) > max_tokens:
            return None
        if all(trail.accepts(token_id) for token_id in way) and self._may_end(trail.mask()):
            return trail.taken
        trail.back_to(start)
        trail.mask()  # the walk goes on from here, and `mask` is the trail's own
        return None

    def _search(self, trail: _Trail, max_tokens: int) -> list[int] | None:
        """Return a way, looking first at states whose masks are new, then at near ones. Mutates:
        trail"""
        trail.back_to(0)
        if not trail.follow_forced():
            return None
        start, root = len(trail.taken), _fingerprint(trail.mask())
        seen, num_looked = Counter((root,)), 0
        waiting = [(0, start, 0, tuple(trail.taken))]
        while waiting and num_looked < MAX_SEARCHED:
            *_, path = heapq.heappop(waiting)
            trail.back_to(0)
            if not all(trail.accepts(token_id) for token_id in path):
                continue
            for token_id in self._branches(trail.mask()):
                num_looked += 1
                trail.back_to(len(path))
                if not (trail.accepts(token_id) and self._follow(trail, max_tokens)):
                    continue
                mask = trail.mask()
                if self._may_end(mask):
                    _remember(trail.ways, root, trail.taken[start:])
                    return trail.taken
                state = _fingerprint(mask)
                way = tuple(trail.taken)
                heapq.heappush(waiting, (seen[state], len(way), num_looked, way))
                seen[state] += 1
        return None

    def _follow(self, trail: _Trail, max_tokens: int) -> bool:
        """Take the tokens that have no alternative; return whether there may be a way from there.
        Mutates: trail"""
        while trail.follow_forced() and len(trail.taken) <= max_tokens:
            mask = trail.mask()
            if self._may_end(mask) or len(branches := self._branches(mask)) != 1:
                return True
            if not trail.accepts(branches[0]):
                return False
        return False

    def _branches(self, mask: np.ndarray) -> list[int]:
        """Return the tokens worth trying: of few allowed ones, each that begins no other; of many,
        the shortest and the longest with each first byte, where bytes of other characters than
        ASCII are as one. In text and in escapes, what may leave it or end a line."""
        state = _fingerprint(mask)
        if (known := self._branches_of.get(state)) is None:
            known = self._find_branches(mask)
            _remember(self._branches_of, state, known)
        return known

    def _find_branches(self, mask: np.ndarray) -> list[int]:
        allowed = self._by_kind[np.flatnonzero(bits := _bits(mask, self._by_kind))]
        bounds = np.concatenate(([0], np.cumsum(bits)))[self._kind_bounds]
        present = bounds[1:] > bounds[:-1]
        kinds, first, last = self._kinds[present], bounds[:-1][present], bounds[1:][present] - 1
        if len(kinds) > _MAX_CHOICES:
            leaving: list[int] = self._leaving[_bits(mask, self._leaving)].tolist()
            return leaving
        if _ESCAPED.issubset(kinds.tolist()) and len(kinds) < 16:
            return [int(allowed[first[kinds == ord("n")][0]])]
        if len(allowed) <= _MAX_CHOICES:
            return self._longest(allowed.tolist())
        pairs = np.stack((allowed[first], allowed[last]), axis=1)
        return list(dict.fromkeys(pairs.ravel().tolist()))

    def _longest(self, token_ids: list[int]) -> list[int]:
        """Return the tokens that are not the beginning of another one."""
        ordered = sorted(token_ids, key=self._tokens.__getitem__)
        texts = [*map(self._tokens.__getitem__, ordered), b""]
        pairs = zip(ordered, texts, texts[1:], strict=False)
        return [i for i, text, after in pairs if not text or not after.startswith(text)]

    def keep_closable(self, matcher: Matcher, mask: np.ndarray, left: int, ways: Ways) -> None:
        """Limit a mask to tokens that let the answer end within `left` tokens, including the end.

        `ways` are those found for this answer; other answers have their own, so that none changes
        another. If no way is short enough, the mask stays unchanged. Mutates: mask, ways
        """
        searches = left <= OFTEN_TOKENS or left % EVERY_TOKENS == 0
        path, is_searched = self._path(matcher, left - 1, ways, searches=searches)
        if path is None:
            return
        if is_searched and 3 * len(path) + SPARE_TOKENS < left:
            return  # another line, say, and the way from it
        safe = np.zeros_like(mask)
        if not is_searched and len(path) + SPARE_TOKENS < left:
            safe |= mask & self._plain
            opening = self._opening[_bits(mask, self._opening)][:MAX_TRIED]
            for token_id in opening.tolist():
                if self._leads_on(matcher, token_id, left - 2, ways):
                    safe[token_id // 32] |= np.uint32(1) << np.uint32(token_id % 32)
        next_id = path[0] if path else int(self._ends[0])
        safe[next_id // 32] |= np.uint32(1) << np.uint32(next_id % 32)
        mask[:] = safe

    def _leads_on(self, matcher: Matcher, token_id: int, left: int, ways: Ways) -> bool:
        """Return whether the answer can end within `left` tokens after this one."""
        if not matcher.accept(token_id):
            return False
        try:
            return self._path(matcher, left, ways, searches=False)[0] is not None
        finally:
            matcher.rollback(1)

    def _may_end(self, mask: np.ndarray) -> bool:
        return bool(_bits(mask, self._ends).any())


class _Trail:
    """The tokens that a matcher has accepted since the beginning of a search, in `taken`."""

    def __init__(self, matcher: Matcher, num_words: int, ways: Ways) -> None:
        self.taken: list[int] = []
        self.ways = ways
        self._matcher = matcher
        self._mask = np.zeros(num_words, dtype=np.uint32)

    def accepts(self, token_id: int) -> bool:
        """Take a token; return False if it is refused or exceeds a limit of the backend."""
        try:
            is_accepted = self._matcher.accept(token_id)
        except InvalidConstraint:
            return False
        if is_accepted:
            self.taken.append(token_id)
        return is_accepted

    def follow_forced(self) -> bool:
        """Take the tokens that must follow; return False at a dead end."""
        try:
            forced = () if self._matcher.is_complete() else self._matcher.forced()
        except InvalidConstraint:
            return False
        return all(self.accepts(token_id) for token_id in forced)

    def mask(self) -> np.ndarray:
        """Return the mask of the next token, valid until the next call; empty at a dead end."""
        self._mask[:] = 0
        try:
            self._matcher.fill(self._mask)
        except InvalidConstraint:
            self._mask[:] = 0
        return self._mask

    def back_to(self, num_tokens: int) -> None:
        """Undo all but the first tokens."""
        if (num_undone := len(self.taken) - num_tokens) > 0:
            self._matcher.rollback(num_undone)
            del self.taken[num_tokens:]


def _fingerprint(mask: np.ndarray) -> int:
    """Return a number that is the same for masks that allow the same tokens."""
    return hash(mask.tobytes())


def _remember(ways: Ways, state: int, way: list[int]) -> None:
    """Add an entry to a bounded table. Mutates: ways"""
    if len(ways) >= MAX_REMEMBERED:
        ways.clear()
    ways[state] = way


def _bits(mask: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Return whether each token's bit is set. Shapes: [words] uint32, [N] -> [N] bool"""
    if len(ids) > len(mask):
        return np.unpackbits(mask.view(np.uint8), bitorder="little").view(bool)[ids]
    return (mask[ids // 32] >> (ids % 32).astype(np.uint32)) & np.uint32(1) != 0

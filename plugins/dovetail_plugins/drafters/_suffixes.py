"""SuffixIndex: where the end of a text occurred before in a token sequence, and what followed.

It finds what a suffix tree would, limited to the latest positions of the last two tokens: each
position links to the previous one with the same two, as in DEFLATE. Two tokens cost a few bytes and
no node, however deep the tree would be. Source of chains: Deutsch, DEFLATE (RFC 1951), section 4.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import pairwise

LEAST_MATCH = 2
"""A chain joins the places of this many tokens."""
MAX_PLACES = 32
"""Earlier places looked at per call, so that common tokens cannot make a step slow."""
HEAD_BITS = 18
"""Maximum number of chains, by a hash of their tokens; colliding ones are told apart by the tokens
themselves."""
GAP = -1
"""Separates two texts; equals no token."""
_HEAD_MASK = (1 << HEAD_BITS) - 1
_MIX = 0x9E3779B1


class SuffixIndex:
    """One growing sequence. Positions count from its very start, even after the first ones are
    dropped; a position is that of the token after a match."""

    __slots__ = ("_base", "_before", "_heads", "_oldest", "_tokens")

    def __init__(self) -> None:
        self._tokens = array("i")
        self._before = array("q", [-1] * LEAST_MATCH)
        self._heads: dict[int, int] = {}
        self._base = 0
        self._oldest = 0

    def tokens(self, first: int) -> Sequence[int]:
        """Return the tokens from a place on."""
        return self._tokens[first - self._base :]

    @property
    def end(self) -> int:
        """Return the position after the last token."""
        return self._base + len(self._tokens)

    def extend(self, token_ids: Sequence[int]) -> None:
        """Take in tokens. Mutates: self

        The two tokens before the end are not yet positions: their successor is unknown.
        """
        tokens, before, heads = self._tokens, self._before, self._heads
        tokens.extend(token_ids)
        base, first = self._base, len(before)
        last = tokens[first - LEAST_MATCH : -1]
        for place, (one, other) in enumerate(pairwise(last), base + first):
            key = (one * _MIX + other) & _HEAD_MASK
            before.append(heads.get(key, -1))
            heads[key] = place

    def drop_before(self, place: int) -> None:
        """Forget the tokens before a position, which some tokens must follow. Mutates: self"""
        self._oldest = place
        num_dead = place - self._base
        if num_dead > len(self._tokens) // 2:  # so that each token is moved once on average
            del self._tokens[:num_dead]
            del self._before[:num_dead]
            self._base = place

    def matches(self, text: Sequence[int], max_length: int) -> list[tuple[int, int]]:
        """Return (length, position) of earlier matches of the last tokens of `text`, latest first.

        A length counts the tokens that agree, LEAST_MATCH to `max_length`.
        """
        end = len(text)
        if end < LEAST_MATCH:
            return []
        tokens, before, base = self._tokens, self._before, self._base
        other, one = text[end - 1], text[end - 2]
        place = self._heads.get((one * _MIX + other) & _HEAD_MASK, -1)
        whole = array("i", text[end - max_length :]) if end >= max_length else array("i")
        found = []
        for _ in range(MAX_PLACES):
            if place < self._oldest + LEAST_MATCH:
                break
            at = place - base
            if tokens[at - 1] == other and tokens[at - 2] == one:
                length, limit = LEAST_MATCH, min(max_length, end, place - self._oldest)
                if limit == max_length and tokens[at - max_length : at] == whole:
                    length = max_length  # as everywhere in a loop, and faster so
                while length < limit and tokens[at - length - 1] == text[end - length - 1]:
                    length += 1
                found.append((length, place))
            place = before[at]
        return found

    def draft(
        self, found: Sequence[tuple[int, int]], max_tokens: int, factor: float, min_share: float
    ) -> tuple[list[int], float]:
        """Return the most frequent continuation of the matches, and the expected number of accepted
        tokens.

        For each length of a match its places vote, token by token, as long as the share of votes of
        all tokens together is at least `min_share`; the draft has `max_tokens` tokens, and
        is `factor` times as long as the match, at most. The length with the largest expectation
        wins.
        """
        best: list[int] = []
        best_score = 0.0
        for length in sorted({length for length, _ in found}, reverse=True):
            limit = min(max_tokens, int(factor * length))
            if limit <= best_score:
                break  # not even certain tokens would be more
            places = [place - self._base for own, place in found if own >= length]
            tokens, score = self._vote(places, limit, min_share)
            if score > best_score:
                best, best_score = tokens, score
        return best, best_score

    def _vote(self, places: list[int], limit: int, min_share: float) -> tuple[list[int], float]:
        """Return the tokens that most of the places agree on, and the sum of their shares.

        At the end of the sequence the draft itself is read on: the text repeats itself.
        """
        tokens, end = self._tokens, len(self._tokens)
        draft: list[int] = []
        share, score = 1.0, 0.0
        for step in range(limit):
            ahead = [place + step for place in places]
            votes = [tokens[at] if at < end else draft[at - end] for at in ahead]
            token_id, num_votes = votes[0], votes.count(votes[0])
            if num_votes < len(votes):
                token_id = max(dict.fromkeys(votes), key=votes.count)
                num_votes = votes.count(token_id)
            share *= num_votes / len(votes)
            if share < min_share or token_id == GAP:
                break
            draft.append(token_id)
            score += share
            if num_votes < len(votes):
                pairs = zip(places, votes, strict=True)
                places = [place for place, vote in pairs if vote == token_id]
        return draft, score

"""Word times: tokens are grouped into words, with times from the decoder's attention.

A word begins at the time of its first token and ends at that of the next word; words stretched by a
pause are shortened. Text in languages without spaces is split into characters. Source: Radford et
al., 2022; the rules for pauses and punctuation are from its authors' implementation
(whisper/timing.py), which the evaluations here use too
"""

from __future__ import annotations

import statistics
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

WITHOUT_SPACES = frozenset({"zh", "ja", "th", "lo", "my", "yue"})
BROKEN = "�"
SENTENCE_ENDS = ".。!！?？"
BELONG_TO_NEXT = "\"'“¿([{-"
BELONG_TO_LAST = "\"'.。,，!！?？:：”)]}、"
MOST_MEDIAN_S = 0.7
"""The upper limit of the median word length; a longer one comes from pauses."""
SPLIT_S = 0.5
"""A segment's own time is used if the word's differs from it by more than this."""
Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedWord:
    """A word and its number of tokens. Units: seconds of the whole recording"""

    text: str
    start: float
    end: float
    num_tokens: int

    @property
    def length_s(self) -> float:
        """Return the duration of the word."""
        return self.end - self.start


def divided(ids: Sequence[int], decode: Decode, language: str | None) -> list[tuple[str, int]]:
    """Return the words of the tokens, each with its number of tokens."""
    pieces = _characters(ids, decode)
    if language in WITHOUT_SPACES:
        return pieces
    words: list[tuple[str, int]] = []
    for text, count in pieces:
        is_mark = text.strip() in string.punctuation
        if words and not text.startswith(" ") and not is_mark:
            before, so_far = words.pop()
            text, count = before + text, so_far + count
        words.append((text, count))
    return words


def _characters(ids: Sequence[int], decode: Decode) -> list[tuple[str, int]]:
    """Return the shortest token groups that form whole characters, each with its number of
    tokens."""
    whole = decode(ids)
    pieces: list[tuple[str, int]] = []
    first, num_chars = 0, 0
    for end in range(1, len(ids) + 1):
        text = decode(ids[first:end])
        at = text.find(BROKEN)
        if at < 0 or whole[num_chars + at : num_chars + at + 1] == BROKEN:
            pieces.append((text, end - first))
            first, num_chars = end, num_chars + len(text)
    if first < len(ids):
        pieces.append((decode(ids[first:]), len(ids) - first))
    return pieces


def timed(words: Sequence[tuple[str, int]], times_s: Sequence[float]) -> list[TimedWord]:
    """Return words with times. `times_s` has the start of each token, and the end of the last."""
    timed_words, first = [], 0
    for text, count in words:
        start, end = times_s[first], times_s[first + count]
        timed_words.append(TimedWord(text=text, start=start, end=end, num_tokens=count))
        first += count
    return timed_words


def usual_length(words: Sequence[TimedWord]) -> float:
    """Return the median duration of words with a nonzero one. Units: seconds"""
    lengths = [one.length_s for one in words if one.length_s]
    return min(MOST_MEDIAN_S, statistics.median(lengths)) if lengths else 0.0


def within_sentences(words: Sequence[TimedWord], most_s: float) -> list[TimedWord]:
    """Return the words, with those at sentence boundaries shortened to `most_s`."""
    result = list(words)
    for at in range(1, len(result)):
        one = result[at]
        if one.length_s > most_s:
            if one.text in SENTENCE_ENDS:
                result[at] = replace(one, end=one.start + most_s)
            elif result[at - 1].text in SENTENCE_ENDS:
                result[at] = replace(one, start=one.end - most_s)
    return result


def with_marks(words: Sequence[TimedWord]) -> list[TimedWord]:
    """Return words merged with the punctuation that belongs to them."""
    openings: list[TimedWord] = []
    for one in reversed(words):
        following = openings[-1] if openings else None
        if following and one.text.startswith(" ") and one.text.strip() in BELONG_TO_NEXT:
            openings[-1] = _joined(one, following, following)
        else:
            openings.append(one)
    merged: list[TimedWord] = []
    for one in reversed(openings):
        if merged and not merged[-1].text.endswith(" ") and one.text in BELONG_TO_LAST:
            merged[-1] = _joined(merged[-1], one, merged[-1])
        else:
            merged.append(one)
    return merged


def _joined(first: TimedWord, second: TimedWord, timed_as: TimedWord) -> TimedWord:
    tokens = first.num_tokens + second.num_tokens
    return replace(timed_as, text=first.text + second.text, num_tokens=tokens)


def after_pause(words: list[TimedWord], last_end: float, usual_s: float) -> None:
    """Shorten the first words of a segment that follows a pause. Mutates: words"""
    max_length_s = usual_s * 2
    first = words[0]
    both_s = words[1].end - first.start if len(words) > 1 else 0.0
    if first.end - last_end <= usual_s * 4 or (
        first.length_s <= max_length_s and both_s <= max_length_s * 2
    ):
        return
    if len(words) > 1 and words[1].length_s > max_length_s:
        border = max(words[1].end / 2, words[1].end - max_length_s)
        words[1] = replace(words[1], start=border)
        first = replace(first, end=border)
    words[0] = replace(first, start=max(0.0, first.end - max_length_s))


def fitted(
    words: Sequence[TimedWord], start: float, end: float, last_end: float, usual_s: float
) -> tuple[list[TimedWord], float, float]:
    """Return (words, start, end) of a segment, each corrected by the other. The segment takes the
    words' times, unless a word extends far outside it. `last_end` is the end of the last
    segment."""
    corrected = list(words)
    if not corrected:
        return corrected, start, end
    after_pause(corrected, last_end, usual_s)
    first = corrected[0]
    if first.start + SPLIT_S < start < first.end:
        corrected[0] = replace(first, start=max(0.0, min(first.end - usual_s, start)))
    else:
        start = first.start
    last = corrected[-1]
    if last.start < end and end + SPLIT_S < last.end:
        corrected[-1] = replace(last, end=max(last.start + usual_s, end))
    else:
        end = last.end
    rounded = [replace(one, start=round(one.start, 2), end=round(one.end, 2)) for one in corrected]
    return rounded, start, end

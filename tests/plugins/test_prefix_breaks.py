"""Prompts that repeat a conversation without beginning like it are found, counted and logged."""

from __future__ import annotations

import logging
import random
from itertools import count

import msgspec
import pytest

from dovetail.interfaces.stats import RequestStats, RequestTimes
from dovetail.observability import metrics
from dovetail_plugins.stat_loggers import _prefix_breaks
from dovetail_plugins.stat_loggers._prefix_breaks import (
    END_TOKENS,
    OPENING_TOKENS,
    PrefixBreaks,
    common_bytes,
)
from dovetail_plugins.stat_loggers.log import LogStats
from dovetail_plugins.stat_loggers.prometheus import PrometheusStats
from dovetail_testing.fakes.objects import request_stats

RNG = random.Random(0)
NUMBERS = count()


def tokens(number: int) -> list[int]:
    return [RNG.randrange(2000) for _ in range(number)]


OPENING = tokens(6)
SYSTEM, FIRST, ANSWER, RESULT = tokens(600), tokens(80), tokens(40), tokens(300)
TURN = [*SYSTEM, *FIRST, *OPENING]
NEXT = [*TURN[: -len(OPENING)], *ANSWER, *RESULT, *OPENING]


def ended(ids: list[int], *, cached: int = 0, **fields: object) -> RequestStats:
    """Return the statistics of a request that arrived after all earlier ones had ended."""
    number = next(NUMBERS)
    times = RequestTimes(arrival_s=number, scheduled_s=number + 0.1, first_token_s=number + 0.2)
    counts = {"prompt_ids": tuple(ids), "prompt_tokens": len(ids), "cached_tokens": cached}
    known = {"request_id": f"r{number}", "times": times, "cache_key": ("", "")}
    return msgspec.structs.replace(request_stats(), **(known | counts | fields))


def changed(ids: list[int], at: int) -> list[int]:
    """Return a prompt with another token at a place, as a date or a counter is."""
    return [*ids[:at], 2001, *ids[at + 1 :]]


def test_a_continued_conversation_is_no_break() -> None:
    breaks = PrefixBreaks()
    assert breaks.note(ended(TURN)) is None
    assert breaks.note(ended(NEXT, cached=len(TURN) - 16)) is None
    assert len(breaks._prompts) == 1  # the second has all of the first but its opening


def test_a_changed_token_in_the_system_text_is_a_break_there() -> None:
    breaks = PrefixBreaks()
    breaks.note(ended(TURN))
    found = breaks.note(ended(changed(NEXT, 48), cached=48))
    assert found is not None
    assert (found.at, found.why, found.was, found.now) == (48, "changed", SYSTEM[48], 2001)
    assert 600 < found.num_lost < len(TURN) - 48


def test_another_conversation_with_the_same_system_text_is_no_break() -> None:
    breaks = PrefixBreaks()
    breaks.note(ended(TURN))
    assert breaks.note(ended([*SYSTEM, *tokens(400)], cached=592)) is None


def test_a_prefix_that_left_the_cache_is_a_break() -> None:
    breaks = PrefixBreaks()
    breaks.note(ended(TURN, cached=32))
    found = breaks.note(ended(NEXT, cached=160))
    assert found is not None
    assert (found.at, found.why) == (160, "gone")
    assert found.num_lost == len(TURN) - 160 - END_TOKENS - OPENING_TOKENS


def test_prompts_that_were_sent_together_are_no_break() -> None:
    breaks = PrefixBreaks()
    breaks.note(ended(TURN, cached=32))
    early = RequestTimes(arrival_s=0.0, scheduled_s=0.05, first_token_s=0.1)
    assert breaks.note(ended(NEXT, times=early)) is None


@pytest.mark.parametrize("key", [("salt", ""), ("", "adapter"), None])
def test_who_shares_no_prefix_breaks_none(key: tuple[str, str] | None) -> None:
    breaks = PrefixBreaks()
    breaks.note(ended(TURN))
    assert breaks.note(ended(changed(NEXT, 48), cache_key=key)) is None


def test_only_the_latest_prompts_are_compared_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_prefix_breaks, "MAX_TOKENS", 2000)
    breaks = PrefixBreaks()
    for _ in range(20):
        breaks.note(ended(tokens(500)))
    assert len(breaks._prompts) == 4
    assert breaks._num_bytes == sum(len(one.data) for one in breaks._prompts.values()) == 8000


def test_common_beginnings_are_found_at_every_length() -> None:
    text = bytes(RNG.randrange(256) for _ in range(200))
    for size in range(200):
        other = text[:size] + bytes([text[size] ^ 1]) + text[size + 1 :]
        assert common_bytes(text, other) == size
        assert common_bytes(text, text[:size]) == size


def test_a_break_is_counted_with_its_place() -> None:
    stats = PrometheusStats(PrometheusStats.Options(), "breaks", 4096)
    stats.request(ended(TURN))
    stats.request(ended(changed(NEXT, 48), cached=48))
    text = metrics.exposition().decode()
    labels = 'engine="0",model_name="breaks"'
    found = {line.rpartition(" ")[0]: line.rpartition(" ")[2] for line in text.splitlines()}
    name = "dovetail:prefix_broken_at_tokens"
    assert found[f"{name}_count{{{labels}}}"] == "1.0"
    assert found[f"{name}_sum{{{labels}}}"] == "48.0"
    lost = float(found[f'dovetail:prefix_broken_tokens_total{{cause="changed",{labels}}}'])
    assert lost > 600
    assert found[f'dovetail:prefix_broken_tokens_total{{cause="gone",{labels}}}'] == "0.0"


def test_the_log_has_one_line_for_breaks_in_an_interval(caplog: pytest.LogCaptureFixture) -> None:
    stats = LogStats(LogStats.Options(interval_s=60.0), "m", 4096)
    with caplog.at_level(logging.INFO, "dovetail.stats"):
        stats.request(ended(TURN))
        first = ended(changed(NEXT, 48), cached=48)
        stats.request(first)
        stats.request(ended(changed(NEXT, 64), cached=64))
        stats.request(ended(changed(NEXT, 80), cached=80))
        stats._logged_break_s -= 100
        stats.request(ended(changed(NEXT, 96), cached=96))
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2
    assert lines[0].startswith(
        f"prefix broke at token 48 of {len(NEXT)} in request {first.request_id}: "
    )
    assert f"token 48 was {SYSTEM[48]} and is 2001" in lines[0]
    assert lines[1].endswith("; 2 more since the last such line")

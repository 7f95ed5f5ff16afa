"""Drafting: how long drafts are, when drafting pauses, and what a bad drafter costs."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from dovetail import registry
from dovetail.engine.active_request import ActiveRequest
from dovetail.engine.kv.kv_cache import KVCacheManager
from dovetail.engine.parts.drafting import MAX_PAUSE_TOKENS, Drafting
from dovetail.engine.request import RUNNING, WAITING, Request
from dovetail.engine.step_stats import StepCounter
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.data.spec import DraftSpec, ModelSpec, Selection
from dovetail.interfaces.data.step import RowResult
from dovetail.interfaces.drafter import Drafter
from dovetail.interfaces.plugin import Info
from dovetail_testing.contract import model_spec
from dovetail_testing.simulate import SimSettings

LONGEST = 8


class Counting(Drafter):
    """Guesses 1, 2, 3 and so on; a request named "raises" or "foreign" makes it fail."""

    info = Info(summary="test drafter")

    def __init__(self, options: Any, model: ModelSpec, max_draft_tokens: int) -> None:
        self.known: set[str] = set()

    def propose(self, request_id: str, token_ids: Sequence[int], max_tokens: int) -> Sequence[int]:
        self.known.add(request_id)
        if request_id == "raises":
            raise ValueError("no idea")
        if request_id == "foreign":
            return [1, 64]
        return list(range(1, 20))

    def forget(self, request_id: str) -> None:
        self.known.discard(request_id)


class Bench:
    """A Drafting, and results of steps made by hand. `is_asked` False: the drafter is on the
    worker."""

    def __init__(self, *, is_asked: bool = True, is_steady: bool = False, **changes: Any) -> None:
        selection = Selection(kind="drafter", name="test", target=f"{__file__}:Counting")
        spec = DraftSpec(drafter=selection, max_tokens=LONGEST)
        sim = SimSettings()
        self.counter = StepCounter(KVCacheManager(sim.layout(), sim.cache(), b"key"))
        model = model_spec(vocab_size=64)
        spec = msgspec.structs.replace(spec, **changes)
        drafter = registry.make(spec.drafter, model, spec.max_tokens) if is_asked else None
        self.drafting = Drafting(spec, drafter, model, self.counter, is_steady=is_steady)

    def request(self, name: str = "r") -> Request:
        made = Request(
            request_id=name,
            prompt_ids=(0,),
            sampling=SamplingParams(max_tokens=10_000),
            seed=0,
            max_model_tokens=10_000,
        )
        made.status = RUNNING
        return made

    def begin(self, request: Request, num_unfinished: int) -> None:
        self.drafting.begin(ActiveRequest(request), num_unfinished)

    def draws(self, request: Request, *, accepted: int | None = None, others: int = 0) -> int:
        """Verify the request's drafts (None: it has none); return how many it has next."""
        num_tokens = 1
        if accepted is not None:
            assert accepted <= len(request.draft_ids)
            request.num_draft_tokens += len(request.draft_ids)
            request.num_accepted_tokens += accepted
            num_tokens += accepted
        request.append(RowResult(row=0, token_ids=(5,) * num_tokens))
        self.drafting.update([request], 1 + others)
        return len(request.draft_ids)


def test_misses_halve_and_hits_double() -> None:
    bench = Bench()
    request = bench.request()
    lengths = [bench.draws(request)]
    lengths += [bench.draws(request, accepted=n) for n in (0, 0, 1, 4, 3, 0)]
    assert lengths == [8, 4, 2, 4, 8, 8, 4]


def test_drafting_pauses_longer_after_each_further_miss() -> None:
    bench = Bench()
    request = bench.request()
    bench.draws(request)
    pauses = []
    for _ in range(20):
        left = bench.draws(request, accepted=0)
        num_tokens = request.num_tokens
        while left == 0:
            left = bench.draws(request)
        assert left <= 4
        pauses.append(request.num_tokens - num_tokens)
    assert pauses == [0, 0, 0, *range(1, 17), MAX_PAUSE_TOKENS]
    assert bench.draws(request, accepted=1) == 2  # one hit ends it


def test_counts_what_was_verified() -> None:
    bench = Bench()
    request = bench.request()
    bench.draws(request)
    bench.draws(request, accepted=3)
    bench.draws(request, accepted=0)
    stats = bench.counter.take((1, 0))
    assert (stats.drafts, stats.draft_tokens, stats.accepted_tokens) == (2, 16, 3)
    assert stats.drafted_at == (2,) * 8 and stats.accepted_at == (1, 1, 1, 0, 0, 0, 0, 0)
    after = bench.counter.take((1, 0))
    assert (after.drafts, after.drafted_at, after.accepted_at) == (0, (), ())


@pytest.mark.parametrize("name", ["raises", "foreign"])
def test_a_failing_drafter_costs_one_request_its_drafts(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench()
    bad, good = bench.request(name), bench.request()
    with caplog.at_level(logging.ERROR, "dovetail.engine.parts.drafting"):
        assert [bench.draws(bad), bench.draws(good), bench.draws(bad)] == [0, LONGEST, 0]
    assert len(caplog.records) == 1 and name in caplog.text
    assert bad.finish_reason is None


def test_nobody_is_asked_in_a_crowd_or_for_waiting_requests() -> None:
    bench = Bench(pause_above_requests=3)
    request = bench.request()
    assert [bench.draws(request, others=n) for n in (2, 3, 2)] == [LONGEST, 0, LONGEST]
    request.status = WAITING
    assert bench.draws(request) == 0


def test_nothing_is_drafted_beyond_the_drafters_context() -> None:
    bench = Bench(max_model_tokens=12)
    request = bench.request()
    lengths = [bench.draws(request) for _ in range(13)]
    assert lengths == [8, 8, 8, 7, 6, 5, 4, 3, 2, 1, 0, 0, 0]


def test_forgets_what_ended() -> None:
    bench = Bench()
    request = bench.request()
    bench.draws(request)
    drafter: Any = bench.drafting._drafter
    assert drafter.known == {"r"}
    bench.drafting.end(ActiveRequest(bench.request("r")))
    bench.drafting.end(ActiveRequest(bench.request("unknown")))
    assert drafter.known == set()


def test_the_worker_brings_as_many_as_are_wanted() -> None:
    bench = Bench(is_asked=False, pause_above_requests=3)
    request = bench.request()
    bench.begin(request, 4)
    assert request.num_wanted_drafts == 0  # too many requests
    bench.begin(request, 1)
    assert request.num_wanted_drafts == LONGEST
    wanted = []
    for accepted in (None, 0, 2, 0, 2, 0, 0):
        if accepted is not None:
            request.num_draft_tokens += len(request.draft_ids)
            request.num_accepted_tokens += accepted
        drafts = tuple(range(request.num_wanted_drafts))
        request.append(RowResult(row=0, token_ids=(5,) * (1 + (accepted or 0)), drafts=drafts))
        bench.drafting.update([request], 1)
        assert request.draft_ids == drafts[: request.num_wanted_drafts]
        wanted.append(request.num_wanted_drafts)
    assert wanted == [8, 8, 8, 8, 8, 6, 5]  # up to twice what they brought lately, and one more
    request.append(RowResult(row=0, token_ids=(5,), drafts=(1, 2)))
    bench.drafting.update([request], 4)
    assert (request.draft_ids, request.num_wanted_drafts) == ((), 0)


def test_drafts_of_the_worker_pause_while_they_bring_too_little() -> None:
    bench = Bench(is_asked=False)
    request = bench.request()
    bench.begin(request, 1)

    def step(num_drafts: int, accepted: int) -> int:
        request.num_draft_tokens += num_drafts
        request.num_accepted_tokens += accepted
        drafts = tuple(range(request.num_wanted_drafts))
        request.append(RowResult(row=0, token_ids=(5,) * (1 + accepted), drafts=drafts))
        bench.drafting.update([request], 1)
        return request.num_wanted_drafts

    wanted, pauses = step(0, 0), []
    for _ in range(16):
        wanted, pause = step(wanted, 0), 0
        while not wanted and pause < 1000:
            wanted, pause = step(0, 0), pause + 1
        pauses.append(pause)
    assert pauses == [0] * 9 + [4, 8, 16, 32, 64, 128, 256]
    assert wanted == 1
    lengths = [wanted := step(wanted, wanted) for _ in range(4)]
    assert lengths == [2, 3, 4, 5]  # one token that came true, and longer ones show their worth


def test_a_request_begins_as_others_fared() -> None:
    bench = Bench(is_asked=False)

    def begun(name: str) -> Request:
        request = bench.request(name)
        bench.begin(request, 1)
        return request

    def miss(request: Request) -> None:
        request.num_draft_tokens += request.num_wanted_drafts
        request.append(RowResult(row=0, token_ids=(5,)))
        bench.drafting.update([request], 1)

    assert begun("first").num_wanted_drafts == LONGEST
    for number in range(20):
        bad = begun(f"bad-{number}")
        for _ in range(10):
            miss(bad)
    later, pause = begun("later"), 0
    while not later.num_wanted_drafts and pause < 1000:  # others have just tried in vain
        miss(later)
        pause += 1
    assert later.num_wanted_drafts == 1 and 0 < pause <= 256  # it shows if that has changed
    assert begun("beside it").num_wanted_drafts == 0
    later.num_accepted_tokens += 1
    miss(later)
    assert begun("after it").num_wanted_drafts == 0  # one token that came true may be luck
    for _ in range(20):
        later.num_accepted_tokens += later.num_wanted_drafts
        miss(later)
    assert begun("much later").num_wanted_drafts > 1
    other = bench.request("greedy")
    other.sampling = SamplingParams(temperature=0.0)
    bench.begin(other, 1)
    assert other.num_wanted_drafts == LONGEST


def test_what_depends_on_drafts_depends_on_no_time() -> None:
    steady, other = Bench(is_asked=False, is_steady=True), Bench(is_asked=False)
    wanted = []
    for bench in (steady, other):
        price: Any = bench.drafting._price
        price.pays = lambda num_rows: False
        request = bench.request()
        bench.begin(request, 1)
        request.append(RowResult(row=0, token_ids=(5,), drafts=(1, 2)))
        bench.drafting.update([request], 1)
        wanted.append(request.num_wanted_drafts)
    assert wanted == [LONGEST, 0]


def test_a_foreign_draft_of_the_worker_is_its_last(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(is_asked=False)
    request = bench.request("odd")
    bench.begin(request, 1)
    for _ in range(2):
        request.append(RowResult(row=0, token_ids=(5,), drafts=(1, 64)))
        with caplog.at_level(logging.ERROR, "dovetail.engine.parts.drafting"):
            bench.drafting.update([request], 1)
        assert (request.draft_ids, request.num_wanted_drafts) == ((), 0)
    assert len(caplog.records) == 1 and "odd" in caplog.text

"""What ranks do wrong: one refuses, one hangs, one dies; who is believed to have been first."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from dovetail.errors import ConfigError, EngineDead, RequestError
from dovetail.interfaces.data.spec import RankSpec, Selection
from dovetail.interfaces.data.step import StepPlan
from dovetail.interfaces.structured_output import AnswerConstraint
from dovetail_plugins.executors._local_ranks import LocalRanks
from dovetail_plugins.executors.mp import MpExecutor
from dovetail_plugins.ranks import executor as ranks_executor
from dovetail_plugins.ranks.executor import Loss, first_loss
from dovetail_testing.tiny.transformer import tiny_layout, tiny_run
from support import moody_worker
from support.moody_worker import CRASH, HANG, LAYER

WORKER = Selection(
    kind="worker", name="moody", target=f"{Path(moody_worker.__file__).resolve()}:Moody"
)


def ranks_of(executor: MpExecutor) -> LocalRanks:
    links = executor._links
    assert isinstance(links, LocalRanks)
    return links


def started() -> MpExecutor:
    run = msgspec.structs.replace(tiny_run(), rank=RankSpec(world_size=2))
    return MpExecutor(None, run, WORKER)


@pytest.fixture
def executor() -> Iterator[MpExecutor]:
    made = started()
    yield made
    made.shutdown()


def test_the_least_free_memory_counts_and_refusals_are_survived(executor: MpExecutor) -> None:
    assert executor.free_bytes() == 100
    with pytest.raises(RequestError, match="no sleep at level 2"):
        executor.sleep(2)
    compiled = AnswerConstraint(backend="none", key="k", artifact=b"")
    with pytest.raises(RequestError, match="the second rank cannot"):
        executor.prepare(compiled).result(10)
    assert executor.submit(StepPlan(step_id=1, rows=())).result().step_id == 1


def test_a_rank_that_fails_in_a_step_is_named_with_its_reason(executor: MpExecutor) -> None:
    heard: list[str] = []
    executor.on_death(heard.append)
    started_s = time.monotonic()
    with pytest.raises(EngineDead, match="rank 1 failed: ValueError: no luck"):
        executor.submit(StepPlan(step_id=CRASH, rows=())).result()
    assert time.monotonic() - started_s < 2
    (said,) = heard
    assert said.startswith("rank 1 failed: ValueError: no luck") and "Moody" in said
    with pytest.raises(EngineDead, match="no luck"):
        executor.check()


@pytest.mark.parametrize("number", [0, 1])
def test_a_killed_rank_ends_a_step_at_once(executor: MpExecutor, number: int) -> None:
    pending = executor.submit(StepPlan(step_id=HANG, rows=()))
    os.kill(ranks_of(executor).pids[number], signal.SIGKILL)
    started_s = time.monotonic()
    with pytest.raises(EngineDead, match=rf"rank {number} \(process \d+\) was killed by signal 9"):
        pending.result()
    assert time.monotonic() - started_s < 1


def test_one_rank_refuses_while_the_others_wait_for_it(
    executor: MpExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks_executor, "FAULT_WAIT_S", 0.2)
    layout = tiny_layout([LAYER], num_blocks=CRASH)
    with pytest.raises(ConfigError, match="seven blocks are too few"):
        executor.allocate(layout)
    with pytest.raises(EngineDead, match="did not answer"):
        executor.check()


def test_a_rank_that_hangs_outside_of_steps_is_told_of(
    executor: MpExecutor, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As one does that is stopped while it loads: nothing limits how long that takes."""
    monkeypatch.setattr(ranks_executor, "SILENCE_S", 0.1)
    pid = ranks_of(executor).pids[1]
    os.kill(pid, signal.SIGSTOP)
    threading.Timer(0.5, os.kill, (pid, signal.SIGCONT)).start()
    assert executor.free_bytes() == 100
    assert "s from ranks [1]: they are busy, or hang" in caplog.text


def test_whoever_was_gone_first_is_told() -> None:
    def loss(number: int, when_s: float, *, is_silent: bool = False) -> Loss:
        return Loss(number=number, when_s=when_s, reason=str(number), is_silent=is_silent)

    assert first_loss([loss(0, 2.0), loss(1, 1.0)]).number == 1
    assert first_loss([loss(0, 1.0), loss(1, 1.1, is_silent=True)]).number == 1

"""Long-lived tasks and threads: failures are logged, counted, seen in /health, and survived."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from dovetail.observability import metrics, supervise
from support.serving import app_for, send


def forget_failures() -> None:
    supervise._failed_s.clear()


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(supervise, "FIRST_WAIT_S", 0.001)
    forget_failures()
    yield
    forget_failures()


def failures(name: str) -> float:
    found = metrics.TASK_FAILURES.labels(name)._value.get()
    return float(found)


def test_a_task_that_fails_is_started_again(caplog: pytest.LogCaptureFixture) -> None:
    runs: list[int] = []

    async def work() -> None:
        runs.append(1)
        if len(runs) < 4:
            raise OSError(24, "Too many open files")

    before = failures("test-task")
    with caplog.at_level(logging.ERROR):
        asyncio.run(supervise.run_supervised("test-task", work))
    assert len(runs) == 4
    assert failures("test-task") == before + 3
    assert "the task test-task failed: OSError" in caplog.text
    assert supervise.failing() == ("test-task",)


def test_a_cancelled_task_ends(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        task = supervise.supervised("test-cancelled", asyncio.Event().wait)  # type: ignore[arg-type]
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert not supervise.failing() and not caplog.records


def test_the_wait_grows_while_it_fails() -> None:
    waits = supervise._Waits()
    found = [waits.after_failure() for _ in range(20)]
    assert found == sorted(found) and found[1] == 2 * found[0]
    assert found[-1] == supervise.LAST_WAIT_S


def test_a_thread_that_fails_is_started_again_until_it_is_over() -> None:
    runs: list[int] = []
    over, ended = threading.Event(), threading.Event()

    def work() -> None:
        runs.append(1)
        raise ValueError("damaged")

    thread = supervise.supervised_thread("test-thread", work, is_over=over, end=ended.set)
    thread.start()
    deadline_s = time.monotonic() + 10
    while len(runs) < 3 and time.monotonic() < deadline_s:
        time.sleep(0.001)
    assert len(runs) >= 3 and thread.is_alive() and not ended.is_set()
    over.set()
    thread.join(10)
    assert ended.is_set()


def test_health_names_what_fails_and_recovers(monkeypatch: pytest.MonkeyPatch) -> None:
    app, _ = app_for()
    assert send(app, "GET", "/health").json() == {"status": "ok"}
    supervise.note_failure("batches", OSError("disk full"))
    answer = send(app, "GET", "/health")
    assert answer.status_code == 200
    told: dict[str, Any] = answer.json()
    assert told["status"] == "degraded" and told["failing_tasks"] == ["batches"]
    assert "disk full" not in answer.text
    monkeypatch.setattr(supervise, "CALM_S", 0.0)
    assert send(app, "GET", "/health").json() == {"status": "ok"}

"""Sums and exchanges between ranks of one machine: numbers, meetings, ranks that fail."""

from __future__ import annotations

import ctypes
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from dovetail_kernels.collective import RankError, SharedMemoryRanks, meeting
from dovetail_kernels.collective.cases import cases, check_case
from dovetail_kernels.cpu.library import library, missing_reason
from support.collective_rank import Ranks

NATIVE = library()
ISAS = [i for i in (NATIVE.isas() if NATIVE else []) if i in ("base", "avx2", "avx512", "neon")]
SMALL = 1 << 16
"""Capacity at which the larger cases take several chunks."""
TIMEOUT_S = 20.0
pytestmark = pytest.mark.skipif(NATIVE is None, reason=str(missing_reason()))


@pytest.fixture(scope="module")
def processes() -> Iterator[Ranks]:
    """Four processes; the last two tests stop and kill some of them."""
    ranks = Ranks(4)
    yield ranks
    ranks.end()


@pytest.fixture
def name(tmp_path: Path) -> str:
    return str(tmp_path)


def join(ranks: Ranks, size: int, name: str, **more: Any) -> None:
    settings = {"capacity_bytes": SMALL, "timeout_s": TIMEOUT_S} | more
    told = ranks.ask(size, do="join", name=name, size=size, **settings)
    assert told == ["joined"] * size


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(("size", "isa"), [*((2, i) for i in ISAS), (3, None), (4, None)])
def test_cases(processes: Ranks, name: str, size: int, isa: str | None) -> None:
    join(processes, size, name, isa=isa)
    assert processes.ask(size, do="cases") == [[]] * size


@pytest.mark.parametrize(("size", "spin_us"), [(2, 50), (4, 0)])
def test_random_sizes_with_ranks_that_are_late(
    processes: Ranks, name: str, size: int, spin_us: int
) -> None:
    join(processes, size, name, spin_us=spin_us, capacity_bytes=1)
    assert processes.ask(size, do="random", seed=size + spin_us) == [[]] * size


def test_recorded_calls_and_their_faults(processes: Ranks, name: str) -> None:
    join(processes, 2, name)
    assert processes.ask(2, do="program") == [True, True]


def test_calls_that_differ_are_named(processes: Ranks, name: str) -> None:
    join(processes, 2, name)
    processes.tell([0], do="sum", count=8)
    processes.tell([1], do="gather", count=4)
    faults = processes.answers([0, 1])
    texts = [fault["text"] for fault in faults]
    assert all("makes another call than the other ranks" in text for text in texts)
    assert any(
        "all_gather of 16 bytes there, all_reduce of 32 bytes of float32 here" in t for t in texts
    )
    again = processes.ask(2, do="sum", count=8)
    assert [fault["rank"] for fault in again] == [again[0]["rank"]] * 2, "the group stays broken"


def test_a_rank_that_has_left_is_named(processes: Ranks, name: str) -> None:
    join(processes, 3, name)
    processes.tell([1], do="close")
    processes.tell([0, 2], do="sum", count=8)
    _, left, right = processes.answers([1, 0, 2])
    assert left["rank"] == right["rank"] == 1
    assert "has left the group" in left["text"]


# ------------------------------------------------------------ ranks as threads of one process


def in_threads(size: int, name: str, work: Callable[[SharedMemoryRanks], Any]) -> list[Any]:
    """Return what `work` returns, or raises, on every rank."""
    found: list[Any] = [None] * size

    def run(rank: int) -> None:
        try:
            with SharedMemoryRanks(
                name, rank=rank, size=size, capacity_bytes=SMALL, timeout_s=5.0
            ) as ranks:
                found[rank] = work(ranks)
        except Exception as error:
            found[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_one_rank_is_alone(name: str) -> None:
    with SharedMemoryRanks(name, rank=0, size=1, timeout_s=1.0) as alone:
        assert [fault for case in cases() for fault in check_case(alone, case)] == []
        alone.barrier()
    with pytest.raises(RankError, match="was closed"):
        alone.barrier()
    alone.close()


def test_counters_wrap(name: str) -> None:
    """After four thousand million calls they begin anew."""

    def work(ranks: SharedMemoryRanks) -> list[str]:
        last = (1 << 32) - 3
        line = 128 * (1 + ranks.rank)
        ctypes.c_uint32.from_buffer(ranks._memory, line).value = last
        state = ranks._state
        state.published = last
        meeting_point.wait()
        faults = [fault for case in cases()[:9] for fault in check_case(ranks, case)]
        assert state.published < 1000
        return faults

    meeting_point = threading.Barrier(2)
    assert in_threads(2, name, work) == [[], []]


def test_without_sockets_or_memory_that_have_no_name(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meeting, "HAS_ABSTRACT_SOCKETS", False)
    monkeypatch.delattr(meeting.os, "memfd_create", raising=False)
    with tempfile.TemporaryDirectory() as folder:  # a socket's path must be short
        monkeypatch.setattr(tempfile, "tempdir", folder)
        sums = in_threads(3, name, lambda ranks: float(ranks.all_reduce(torch.ones(3)).sum()))
        assert sums == [9.0] * 3
        assert list(Path(folder).iterdir()) == []
        monkeypatch.setattr(tempfile, "tempdir", folder + "/" + 120 * "x")
        errors = meet_in_threads(place(name, 0, 2))
    assert "AF_UNIX path too long" in str(errors[0])


def test_values_that_are_no_numbers_stay(name: str) -> None:
    x = torch.tensor([float("inf"), -float("inf"), float("nan"), -0.0, 65504.0, 6e-8]).half()
    sums = in_threads(2, name, lambda ranks: ranks.all_reduce(x.clone()))
    assert torch.equal(sums[0].nan_to_num(7.0), (x.float() * 2).half().nan_to_num(7.0))
    assert sums[0][3].signbit()
    assert torch.equal(sums[0].view(torch.int16), sums[1].view(torch.int16))


def test_wrong_arguments_are_refused_before_anyone_waits(name: str) -> None:
    with SharedMemoryRanks(name, rank=0, size=1, timeout_s=1.0) as alone:
        with pytest.raises(TypeError, match="int64 cannot be added up; float32, bfloat16, float16"):
            alone.all_reduce(torch.ones(3, dtype=torch.int64))
        with pytest.raises(ValueError, match="meta"):
            alone.all_gather(torch.ones(3, device="meta"))
        with pytest.raises(ValueError, match=r"out must be \[1, 3\] of torch.float32"):
            alone.all_gather(torch.ones(3), torch.ones(3))
        with pytest.raises(ValueError, match="root 1: the ranks are 0 to 0"):
            alone.broadcast(torch.ones(3), 1)
        with pytest.raises(ValueError, match="2 pieces for 1 ranks"):
            alone.all_to_all([torch.ones(3), torch.ones(3)])
        with pytest.raises(ValueError, match="first size must be 1"):
            alone.reduce_scatter(torch.ones(3))
    with pytest.raises(ValueError, match="rank 2 of 2"):
        SharedMemoryRanks(name, rank=2, size=2, timeout_s=1.0)


# ------------------------------------------------------------------------------- how they meet


def test_who_does_not_come_is_named(name: str) -> None:
    for rank, text, missing in (
        (0, "rank 1, 2 of 3 did not come", 1),
        (1, "rank 0 was not there", 0),
    ):
        with pytest.raises(RankError, match=text) as caught:
            SharedMemoryRanks(name, rank=rank, size=3, timeout_s=0.05)
        assert caught.value.rank == missing


def meet_in_threads(*places: meeting.RankPlace) -> list[RankError]:
    """Let places meet that cannot; return their errors."""
    found: list[RankError] = []

    def run(place: meeting.RankPlace) -> None:
        try:
            meeting.meet(place)
        except RankError as error:
            found.append(error)

    threads = [threading.Thread(target=run, args=(place,)) for place in places]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def place(name: str, rank: int, size: int, num_bytes: int = 4096) -> meeting.RankPlace:
    return meeting.RankPlace(name=name, rank=rank, size=size, num_bytes=num_bytes, timeout_s=5.0)


def test_ranks_of_other_settings_are_refused(name: str) -> None:
    errors = meet_in_threads(place(name, 0, 2), place(name, 1, 2, 8192))
    assert [error.rank for error in errors] == [1, 1]
    assert "rank 1 wants another group (version 1, 2 ranks, 8192 bytes) than" in str(errors[0])


def test_two_launches_under_one_name_are_refused(name: str) -> None:
    with meeting._listening(place(name, 0, 2)):
        assert is_listed(name) == Path("/proc/net/unix").exists()
        with pytest.raises(RankError, match="it is in use: another group meets under it"):
            meeting.meet(place(name, 0, 2))
    errors = meet_in_threads(place(name, 0, 3), place(name, 1, 3), place(name, 1, 3))
    assert len(errors) == 3
    assert {str(error) for error in errors} == {"two processes say that they are rank 1"}


def test_a_rank_that_ends_while_they_meet_is_named(name: str) -> None:
    found: list[RankError] = []
    thread = threading.Thread(target=lambda: found.extend(meet_in_threads(place(name, 0, 3))))
    thread.start()
    with meeting._connected(place(name, 1, 3), time.monotonic() + 5.0) as connection:
        connection.sendall(meeting.HELLO.pack(meeting.VERSION, 1, 3, 4096, 1))
    thread.join()
    assert [str(error) for error in found] == ["rank 1 ended before all ranks had come"]


# -------------------------------------------------------------------- ranks that fail: the last


def is_listed(name: str) -> bool:
    """Return whether the system still knows the address that ranks meet at."""
    path = Path("/proc/net/unix")
    return path.exists() and meeting._address(name).strip("\0") in path.read_text()


def test_a_stopped_rank_is_named_after_the_timeout(processes: Ranks, name: str) -> None:
    join(processes, 4, name, timeout_s=1.0)
    processes.children[3].send_signal(signal.SIGSTOP)
    try:
        processes.tell(range(3), do="sum", count=1000)
        faults = processes.answers(range(3))
    finally:
        processes.children[3].send_signal(signal.SIGCONT)
    assert [fault["rank"] for fault in faults] == [3, 3, 3]
    assert all(0.9 < fault["seconds"] < 5.0 for fault in faults)
    assert any(
        "did not come within 1 s to a call of all ranks. It is stopped." in f["text"]
        for f in faults
    )
    (late,) = processes.ask(4, do="sum", count=1000)[3:]
    assert late["rank"] == 3, "it learns that the others gave it up"


@pytest.mark.parametrize("killed", [3, 0])
def test_a_killed_rank_is_named_at_once(processes: Ranks, name: str, killed: int) -> None:
    size = 4 if killed == 3 else 3
    others = [rank for rank in range(size) if rank != killed]
    join(processes, size, name)
    processes.tell(range(size), do="sums_for_ever", count=3000)
    time.sleep(0.1)
    start_s = time.monotonic()
    processes.children[killed].send_signal(signal.SIGKILL)
    faults = processes.answers(others)
    assert time.monotonic() - start_s < TIMEOUT_S / 4
    assert [fault["rank"] for fault in faults] == [killed] * (size - 1)
    assert all("has ended: it was killed or failed" in fault["text"] for fault in faults)
    assert not is_listed(name), "what they met at is gone"

"""Communicator: two ranks get the same bits of each other's tensors, in order, or an error."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from dovetail.errors import ConfigError
from dovetail.interfaces.communicator import OVERLAPS, Communicator, CommunicatorQuery, Membership
from dovetail_testing.contract import default_options, device_of

LIMIT_S = 30.0
Work = Callable[[Communicator, int], Any]
SIZES = ((1,), (3, 5), (7, 1000), (2, 300_001))


class Ranks:
    """The ranks of one group, each in its own thread."""

    def __init__(self, plugin: Any, address: str, device: str, size: int) -> None:
        self.size, self.device = size, device
        self._pool = ThreadPoolExecutor(size)
        self.members = [
            Membership(
                rank=rank,
                size=size,
                address=address,
                is_host=rank == 0,
                device=device,
                join_limit_s=LIMIT_S,
                call_limit_s=2.0,
            )
            for rank in range(size)
        ]
        options = default_options(plugin)
        self.ranks: list[Communicator] = self.each(
            [partial(plugin, options, member) for member in self.members]
        )

    def each(self, calls: Sequence[Callable[[], Any]]) -> list[Any]:
        """Return the results of concurrent calls, one by each rank."""
        futures = [self._pool.submit(call) for call in calls]
        return [future.result(LIMIT_S) for future in futures]

    def run(self, work: Work) -> list[Any]:
        """Return each rank's answer."""
        return self.each([partial(work, one, one.rank) for one in self.ranks])

    def close(self) -> None:
        """Close every rank, twice."""
        for _ in range(2):
            for one in self.ranks:
                one.close()
        self._pool.shutdown()


def device_and_size(plugin: Any) -> tuple[str, int]:
    """Return the device to try on, and how many ranks it can take."""
    device = device_of(plugin)
    return device, 2 if device == "cpu" else min(2, torch.cuda.device_count())


@pytest.fixture
def ranks(plugin: Any, tmp_path: Path) -> Iterator[Ranks]:
    """Return a group that has joined."""
    device, size = device_and_size(plugin)
    group = Ranks(plugin, f"file://{tmp_path}/meeting", device, size)
    yield group
    group.close()


def made_up(rank: int, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return a tensor of one rank."""
    generator = torch.Generator().manual_seed(100 + rank)
    return (torch.randn(*shape, generator=generator) * 50).to(dtype)


def summed(size: int, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Return the sum of the ranks' tensors in the widest type."""
    return sum((made_up(rank, shape, dtype).double() for rank in range(size)), torch.zeros(()))


class TestCommunicator:
    """Clauses of communicators. The ranks are threads, each with its own object."""

    kind = "communicator"

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int64])
    def test_sums(self, ranks: Ranks, dtype: torch.dtype) -> None:
        """all_reduce gives the sum, the same bits on every rank, in the tensor itself."""
        for shape in SIZES:

            def work(one: Communicator, rank: int, shape: Sequence[int] = shape) -> Any:
                x = made_up(rank, shape, dtype).to(one.device)
                total = one.all_reduce(x)
                return total.cpu(), x.cpu()

            answers = ranks.run(work)
            for total, given in answers:
                assert torch.equal(total, answers[0][0]) and torch.equal(given, total)
            wanted = summed(ranks.size, shape, dtype).to(dtype)
            torch.testing.assert_close(answers[0][0], wanted)

    def test_gathers_in_rank_order(self, ranks: Ranks) -> None:
        """all_gather stacks the ranks' tensors, whatever their type and memory layout."""
        for dtype in (torch.float32, torch.uint8, torch.int64, torch.bool):

            def work(one: Communicator, rank: int, dtype: torch.dtype = dtype) -> torch.Tensor:
                x = made_up(rank, (6, 4), dtype).to(one.device)
                return one.all_gather(x.t()).cpu()

            wanted = torch.stack([made_up(r, (6, 4), dtype).t() for r in range(ranks.size)])
            for answer in ranks.run(work):
                assert torch.equal(answer, wanted)

    def test_broadcasts_from_any_rank(self, ranks: Ranks) -> None:
        """broadcast gives every rank the source's tensor."""
        for source in range(ranks.size):

            def work(one: Communicator, rank: int, source: int = source) -> torch.Tensor:
                return one.broadcast(made_up(rank, (9,)).to(one.device), source).cpu()

            for answer in ranks.run(work):
                assert torch.equal(answer, made_up(source, (9,)))

    def test_scatters_sums(self, ranks: Ranks) -> None:
        """reduce_scatter gives each rank its part of the sum."""
        shape = (ranks.size * 3, 5)
        answers = ranks.run(
            lambda one, rank: one.reduce_scatter(made_up(rank, shape).to(one.device)).cpu()
        )
        wanted = summed(ranks.size, shape, torch.float32).float()
        torch.testing.assert_close(torch.cat(answers), wanted)

    def test_exchanges_parts(self, ranks: Ranks) -> None:
        """all_to_all gives rank i the i-th part of everybody's tensor."""
        shape = (ranks.size * 2, 3)
        answers = ranks.run(
            lambda one, rank: one.all_to_all(made_up(rank, shape).to(one.device)).cpu()
        )
        given = [made_up(rank, shape).chunk(ranks.size) for rank in range(ranks.size)]
        for rank, answer in enumerate(answers):
            assert torch.equal(answer, torch.cat([parts[rank] for parts in given]))

    def test_sends_to_the_other_of_two(self, ranks: Ranks) -> None:
        """Tensors of any size go from one rank to the other in order, in both directions, and what
        was sent may be written to; they do not mix with calls of both."""
        if ranks.size < 2:
            pytest.skip("there is a device for one rank only")

        def work(one: Communicator, rank: int) -> list[torch.Tensor]:
            found = []
            for number, shape in enumerate((*SIZES, (4, 4))):
                x = made_up(rank + number, shape).to(one.device)
                if rank == number % 2:
                    one.send(x.t())
                    x.zero_()
                else:
                    found.append(one.receive(x.t().contiguous()).cpu())
                found.append(one.all_reduce(torch.ones(2, device=one.device)).cpu())
            return found

        sent: list[list[torch.Tensor]] = [[], []]
        for number, shape in enumerate((*SIZES, (4, 4))):
            sent[1 - number % 2].append(made_up(number % 2 + number, shape).t())
        for rank, answers in enumerate(ranks.run(work)):
            sums = [answer for answer in answers if answer.shape == (2,)]
            assert len(sums) == len(SIZES) + 1 and all(float(x.sum()) == 4.0 for x in sums)
            others = [answer for answer in answers if answer.shape != (2,)]
            assert all(torch.equal(*pair) for pair in zip(others, sent[rank], strict=True))

    def test_exchanges_rows(self, ranks: Ranks) -> None:
        """all_to_all_rows brings as many rows from each rank to each as a table says."""
        size = ranks.size
        for factor in (1, 0, 3):
            counts = [[factor * ((3 * i + j) % 4) for j in range(size)] for i in range(size)]
            rows = [made_up(rank, (sum(counts[rank]), 5)) for rank in range(size)]

            def work(
                one: Communicator,
                rank: int,
                counts: list[list[int]] = counts,
                rows: list[torch.Tensor] = rows,
            ) -> torch.Tensor:
                return one.all_to_all_rows(rows[rank].to(one.device), counts).cpu()

            for rank, answer in enumerate(ranks.run(work)):
                parts = [rows[other].split_with_sizes(counts[other])[rank] for other in range(size)]
                assert torch.equal(answer, torch.cat(parts))

    def test_keeps_the_order(self, ranks: Ranks) -> None:
        """Many calls of changing kinds and sizes do not mix."""

        def work(one: Communicator, rank: int) -> list[float]:
            found = []
            for number in range(60):
                x = torch.full((1 + number % 7,), float(number + rank), device=one.device)
                found.append(float(one.all_reduce(x)[-1]))
                found.append(float(one.all_gather(x)[-1, -1]))
            return found

        size = ranks.size
        sums = [float(size * number + sum(range(size))) for number in range(60)]
        for answer in ranks.run(work):
            assert answer[::2] == sums
            assert answer[1::2] == sums, "the gathered tensor is the summed one"

    def test_calls_that_were_begun_end_in_their_order(self, ranks: Ranks) -> None:
        """begin gives the results of calls, whatever was begun after them, in inference mode too; a
        communicator that claims overlaps does not wait for the other ranks."""

        def work(one: Communicator, rank: int) -> list[torch.Tensor]:
            with torch.inference_mode():
                x = made_up(rank, (300,)).to(one.device)
                finish = one.begin(lambda: one.all_reduce(x))
                gather = one.begin(lambda: one.all_gather(torch.ones(3, device=one.device)))
                results = [finish().cpu(), gather().cpu()]
            return [*results, one.all_reduce(torch.ones(2, device=one.device)).cpu()]

        for summed_up, gathered, last in ranks.run(work):
            torch.testing.assert_close(summed_up, summed(ranks.size, (300,), torch.float32).float())
            assert gathered.shape == (ranks.size, 3) and last.tolist() == [ranks.size] * 2
        if OVERLAPS in type(ranks.ranks[0]).capabilities and ranks.size > 1:
            first, second = ranks.ranks
            x = torch.ones(5, device=first.device)
            finish = first.begin(lambda: first.all_reduce(x))
            late = ranks.each([lambda: second.all_reduce(torch.ones(5, device=second.device))])
            assert torch.equal(finish(), late[0].to(first.device))

    def test_a_barrier_waits(self, ranks: Ranks) -> None:
        """barrier returns once every rank has called it."""
        late, seen = threading.Event(), list[bool]()

        def work(one: Communicator, rank: int) -> None:
            if rank == ranks.size - 1:
                time.sleep(0.05)
                late.set()
            one.barrier()
            seen.append(late.is_set())

        ranks.run(work)
        assert seen == [True] * ranks.size

    def test_a_rank_that_is_gone_is_told(self, ranks: Ranks) -> None:
        """A call whose other ranks are gone raises RuntimeError, in time."""
        if ranks.size < 2:
            pytest.skip("there is a device for one rank only")
        for one in ranks.ranks[1:]:
            one.close()
        with pytest.raises(RuntimeError):
            ranks.each([lambda: ranks.ranks[0].all_reduce(torch.ones(4))])

    def test_a_rank_that_never_comes_is_told(self, plugin: Any, tmp_path: Path) -> None:
        """Joining without the others is a ConfigError after the given time."""
        device, size = device_and_size(plugin)
        if size < 2:
            pytest.skip("there is a device for one rank only")
        member = Membership(
            rank=0, size=2, address=f"file://{tmp_path}/meeting", device=device, join_limit_s=0.5
        )
        with pytest.raises(ConfigError, match="rank 0 of 2"):
            plugin(default_options(plugin), member)

    def test_says_where_it_fits(self, plugin: Any) -> None:
        """It fits ranks on one machine, on a type of device that it names, and no unknown one."""
        for device in plugin.info.devices:
            assert plugin.why_not(CommunicatorQuery(device=device, is_one_machine=True)) == []
        assert plugin.info.devices
        assert plugin.why_not(CommunicatorQuery(device="abacus", is_one_machine=True))

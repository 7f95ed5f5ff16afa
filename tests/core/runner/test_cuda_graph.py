"""CudaGraph against a double of torch's graphs, which refuses memory as torch's allocator does.

Source: c10/cuda/CUDACachingAllocator.cpp, create_or_incref_pool: `use_count > 0`; capture_end
leaves a pool recording where a capture failed (torch before 2.12)
"""

from __future__ import annotations

import contextlib
from typing import Any
from weakref import finalize

import pytest
import torch

from dovetail.runner.device import CudaDevice


class _Allocator:
    """Pools by handle, and how many graphs use each."""

    def __init__(self) -> None:
        self.uses: dict[int, int] = {}
        self.recording: set[int] = set()
        self.num_handles = 0
        self.is_broken = False

    def handle(self) -> int:
        self.num_handles += 1
        return self.num_handles

    def graph(self) -> _Graph:
        return _Graph(self)


class _Graph:
    def __init__(self, allocator: _Allocator) -> None:
        self._allocator = allocator

    def capture_begin(self, *, pool: int, capture_error_mode: str) -> None:
        own = self._allocator
        if own.uses.get(pool) == 0:
            raise RuntimeError("use_count > 0 INTERNAL ASSERT FAILED")
        if pool in own.recording:
            raise RuntimeError("beginAllocateToPool: already recording to mempool_id")
        own.uses[pool] = own.uses.get(pool, 0) + 1
        own.recording.add(pool)
        self._pool = pool
        finalize(self, _leave, own.uses, pool)

    def capture_end(self) -> None:
        if self._allocator.is_broken:
            raise RuntimeError("operation failed due to a previous error during capture")
        self._allocator.recording.discard(self._pool)


def _leave(uses: dict[int, int], pool: int) -> None:
    uses[pool] -= 1


@pytest.fixture
def allocator(monkeypatch: pytest.MonkeyPatch) -> _Allocator:
    made = _Allocator()

    class Stream:
        def __init__(self, device: Any = None) -> None: ...
        def wait_stream(self, other: Any) -> None: ...
        def synchronize(self) -> None: ...

    doubles = {
        "graph_pool_handle": made.handle,
        "CUDAGraph": made.graph,
        "Stream": Stream,
        "current_stream": Stream,
        "stream": contextlib.nullcontext,
    }
    for name, double in doubles.items():
        monkeypatch.setattr(torch.cuda, name, double)
    return made


def test_graphs_share_memory_while_one_lives(allocator: _Allocator) -> None:
    device = CudaDevice(torch.device("cuda", 0))

    def captured(count: int) -> list[Any]:
        graphs = [device.graph() for _ in range(count)]
        for graph in graphs:
            assert graph is not None
            graph.capture(lambda: torch.zeros(1))
        return graphs

    graphs = captured(3)
    assert allocator.uses == {1: 3}
    del graphs[1:]
    graphs += captured(1)
    assert allocator.uses == {1: 2}
    graphs.clear()
    assert captured(2) and allocator.num_handles == 2


def test_memory_of_a_failed_capture_is_not_taken_again(allocator: _Allocator) -> None:
    device = CudaDevice(torch.device("cuda", 0))
    first, second, third = (device.graph() for _ in range(3))
    assert first is not None and second is not None and third is not None
    first.capture(lambda: torch.zeros(1))
    allocator.is_broken = True
    with pytest.raises(RuntimeError, match="previous error"):
        second.capture(lambda: torch.zeros(1))
    allocator.is_broken = False
    third.capture(lambda: torch.zeros(1))
    assert allocator.num_handles == 2

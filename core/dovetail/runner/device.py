"""DeviceCalls: the few calls that differ between devices.

A HostDevice has finished when a call returns. A CudaDevice queues work on one stream: later work
sees earlier work's results, and the host runs ahead. Tests use a fake.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol
from weakref import WeakSet

import torch


class Moment(Protocol):
    """A point in the device's work, marked by the host."""

    def wait(self) -> None:
        """Block until the device has reached it."""

    def seconds_since(self, earlier: Moment) -> float:
        """Return the device time between two moments that have passed."""


class Graph(Protocol):
    """Work that is captured once and replayed on the same memory."""

    def capture(self, function: Callable[[], torch.Tensor]) -> None:
        """Run the function, which must not wait for the device, and capture what it queues.

        Raises: RuntimeError when it cannot be captured.
        """

    def replay(self) -> torch.Tensor:
        """Queue the work again; return the same tensor, which the device then refills."""


class DeviceCalls(Protocol):
    """The calls to a device beyond torch's operators. `runs_ahead`: calls return before their work
    is done."""

    runs_ahead: bool

    def host_buffer(self, num_bytes: int) -> torch.Tensor:
        """Return host memory for asynchronous copies. Shapes: [num_bytes] uint8"""

    def mark(self) -> Moment:
        """Return the moment at which all work queued so far is done."""

    def graph(self) -> Graph | None:
        """Return an empty graph; None on devices without graphs. All share one memory pool."""

    def queue(self) -> Callable[[], AbstractContextManager[Any]]:
        """Return a context manager that makes a thread queue its work after this thread's."""


class HostMoment:
    """A time on the host's clock."""

    __slots__ = ("at_s",)

    def __init__(self) -> None:
        self.at_s = time.perf_counter()

    def wait(self) -> None:
        """Return immediately: the work is done."""

    def seconds_since(self, earlier: Moment) -> float:
        """Return the seconds between the two."""
        assert isinstance(earlier, HostMoment), "moments of different devices were compared"
        return self.at_s - earlier.at_s


class HostDevice:
    """The CPU that Python runs on."""

    runs_ahead = False

    def host_buffer(self, num_bytes: int) -> torch.Tensor:
        """Return unpinned memory."""
        return torch.empty(num_bytes, dtype=torch.uint8)

    def mark(self) -> Moment:
        """Return the current time."""
        return HostMoment()

    def graph(self) -> Graph | None:
        """Return None: see `runner.recorded` for what a CPU does instead."""
        return None

    def queue(self) -> Callable[[], AbstractContextManager[Any]]:
        """Return a no-op context manager: there is no queue."""
        return nullcontext


class CudaMoment:
    """A CUDA event on the current stream."""

    __slots__ = ("event",)

    def __init__(self) -> None:
        self.event = torch.cuda.Event(enable_timing=True)
        self.event.record()

    def wait(self) -> None:
        """Wait for the event; other threads run meanwhile."""
        self.event.synchronize()

    def seconds_since(self, earlier: Moment) -> float:
        """Return the device's seconds between two events."""
        assert isinstance(earlier, CudaMoment), "moments of different devices were compared"
        return float(earlier.event.elapsed_time(self.event)) / 1e3


class GraphMemory:
    """The memory pool that captured graphs share as long as one of them lives.

    torch rejects a pool handle whose graphs are all gone, or whose capture failed.
    """

    def __init__(self) -> None:
        self._handle: Any = None
        self._graphs: WeakSet[CudaGraph] = WeakSet()

    def handle(self) -> Any:
        """Return the memory pool for the next graph. Mutates: self"""
        if self._handle is None or not self._graphs:
            self._handle = torch.cuda.graph_pool_handle()
        return self._handle

    def keep(self, graph: CudaGraph) -> None:
        """Remember a graph that has been captured. Mutates: self"""
        self._graphs.add(graph)

    def drop(self) -> None:
        """Use a new pool for the next graph, after a failed capture."""
        self._handle = None


class CudaDevice:
    """One NVIDIA GPU. Graphs are captured on a separate stream and share their memory."""

    runs_ahead = True

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._memory = GraphMemory()
        self._stream: torch.cuda.Stream | None = None

    def host_buffer(self, num_bytes: int) -> torch.Tensor:
        """Return pinned memory."""
        return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)

    def mark(self) -> Moment:
        """Return an event recorded now."""
        return CudaMoment()

    def graph(self) -> Graph | None:
        """Return a CudaGraph in this device's shared memory pool."""
        if self._stream is None:
            self._stream = torch.cuda.Stream(self._device)
        return CudaGraph(self._memory, self._stream)

    def queue(self) -> Callable[[], AbstractContextManager[Any]]:
        """Return a context manager that makes this thread's stream and device another thread's."""
        stream = torch.cuda.current_stream(self._device)
        return lambda: torch.cuda.stream(stream)


class CudaGraph:
    """A torch.cuda.CUDAGraph. Its result has its own memory, so it should be small."""

    def __init__(self, memory: GraphMemory, stream: torch.cuda.Stream) -> None:
        self._memory = memory
        self._stream = stream
        self._graph = torch.cuda.CUDAGraph()
        self._result: torch.Tensor | None = None

    def capture(self, function: Callable[[], torch.Tensor]) -> None:
        """Run the function twice: once to compile kernels and create handles, once to capture it.

        Raises: RuntimeError when it waits for the device or allocates what cannot be captured.
        """
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            function()
            self._stream.synchronize()
            try:
                self._record(function)
            except Exception:
                self._memory.drop()
                raise
        torch.cuda.current_stream().wait_stream(self._stream)
        self._memory.keep(self)

    def _record(self, function: Callable[[], torch.Tensor]) -> None:
        """Capture the work that a function queues. Mutates: self"""
        self._graph.capture_begin(pool=self._memory.handle(), capture_error_mode="thread_local")
        try:
            self._result = function()
        finally:
            self._graph.capture_end()

    def replay(self) -> torch.Tensor:
        """Launch the graph on the current stream."""
        assert self._result is not None, "a graph is captured before it is replayed"
        self._graph.replay()
        return self._result


def calls_of(device: torch.device) -> DeviceCalls:
    """Return the calls of a device."""
    return CudaDevice(device) if device.type == "cuda" else HostDevice()

"""DeviceCalls: the few calls in which the devices that a runner computes on differ.

A HostDevice has done everything when a call returns. A CudaDevice queues work on one stream: what
is queued later sees what was queued before, and the host runs ahead. Tests give a runner a double.
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
        """Return when the device has got there."""

    def seconds_since(self, earlier: Moment) -> float:
        """Return the device's time between two moments that have passed."""


class Graph(Protocol):
    """Work that is captured once and run again on the same memory."""

    def capture(self, function: Callable[[], torch.Tensor]) -> None:
        """Run the function, which must not wait for the device, and keep what it queues.

        Raises: RuntimeError when it cannot be kept.
        """

    def replay(self) -> torch.Tensor:
        """Queue the work again; return the same tensor, filled anew when the device is there."""


class DeviceCalls(Protocol):
    """The calls to a device beyond torch's operators. `runs_ahead`: calls return before their work
    is done."""

    runs_ahead: bool

    def host_buffer(self, num_bytes: int) -> torch.Tensor:
        """Return host memory that is copied from without waiting. Shapes: [num_bytes] uint8"""

    def mark(self) -> Moment:
        """Return the moment at which all work queued so far is done."""

    def graph(self) -> Graph | None:
        """Return a graph to be captured; None on devices without them. All share one memory."""

    def queue(self) -> Callable[[], AbstractContextManager[Any]]:
        """Return what makes a thread queue its work behind this one's, inside a with block."""


class HostMoment:
    """A time of the host's clock."""

    __slots__ = ("at_s",)

    def __init__(self) -> None:
        self.at_s = time.perf_counter()

    def wait(self) -> None:
        """Return at once: what was called is done."""

    def seconds_since(self, earlier: Moment) -> float:
        """Return the seconds between the two."""
        assert isinstance(earlier, HostMoment), "moments of different devices were compared"
        return self.at_s - earlier.at_s


class HostDevice:
    """The processors that Python itself runs on."""

    runs_ahead = False

    def host_buffer(self, num_bytes: int) -> torch.Tensor:
        """Return plain memory."""
        return torch.empty(num_bytes, dtype=torch.uint8)

    def mark(self) -> Moment:
        """Return now."""
        return HostMoment()

    def graph(self) -> Graph | None:
        """Return None: see `runner.recorded` for what a CPU does instead."""
        return None

    def queue(self) -> Callable[[], AbstractContextManager[Any]]:
        """Return nothing to do: there is no queue."""
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
    """The memory that captured graphs share for as long as one of them lives.

    torch takes no handle again whose graphs are all gone, nor one whose capture failed.
    """

    def __init__(self) -> None:
        self._handle: Any = None
        self._graphs: WeakSet[CudaGraph] = WeakSet()

    def handle(self) -> Any:
        """Return where a graph that is captured now takes its memory from. Mutates: self"""
        if self._handle is None or not self._graphs:
            self._handle = torch.cuda.graph_pool_handle()
        return self._handle

    def keep(self, graph: CudaGraph) -> None:
        """Remember a graph that has been captured. Mutates: self"""
        self._graphs.add(graph)

    def drop(self) -> None:
        """Let the next graph begin with fresh memory, after a capture that failed."""
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
        """Return a CudaGraph in the memory that this device's graphs share."""
        if self._stream is None:
            self._stream = torch.cuda.Stream(self._device)
        return CudaGraph(self._memory, self._stream)

    def queue(self) -> Callable[[], AbstractContextManager[Any]]:
        """Return what makes this thread's stream, and its device, those of another."""
        stream = torch.cuda.current_stream(self._device)
        return lambda: torch.cuda.stream(stream)


class CudaGraph:
    """A torch.cuda.CUDAGraph. Its result keeps its own place in the memory: it should be small."""

    def __init__(self, memory: GraphMemory, stream: torch.cuda.Stream) -> None:
        self._memory = memory
        self._stream = stream
        self._graph = torch.cuda.CUDAGraph()
        self._result: torch.Tensor | None = None

    def capture(self, function: Callable[[], torch.Tensor]) -> None:
        """Run the function twice: kernels are compiled and handles made before anything is kept.

        Raises: RuntimeError when it waits for the device or allocates what cannot be kept.
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
        """Keep what a function queues. Mutates: self"""
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

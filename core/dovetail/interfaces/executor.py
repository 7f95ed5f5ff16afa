"""Executor: calls the workers of all ranks and collects their results."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, ClassVar, Protocol

import msgspec

from dovetail.errors import RequestError
from dovetail.interfaces.data.adapter_spec import AdapterFacts, AdapterSource
from dovetail.interfaces.data.spec import RunSpec, Selection
from dovetail.interfaces.data.step import CachedLayer, KVLayout, StepPlan, StepResult
from dovetail.interfaces.plugin import Plugin
from dovetail.interfaces.structured_output import CompiledConstraint


class WorkerCall(msgspec.Struct, frozen=True, kw_only=True):
    """A method of the workers to call, by name, or a function as "module:function", which gets the
    worker as its first argument.

    Arguments and results are JSON values or bytes. The caller waits for `timeout_s` (None: without
    limit).
    """

    method: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    timeout_s: float | None = None


READ_WEIGHTS, UPDATE_WEIGHTS, DROP_WEIGHTS = "read_weights", "update_weights", "drop_weights"
"""Methods of workers: read a `path` next to the weights in use, use what was read, drop it."""


class BlockLoad(msgspec.Struct, frozen=True, kw_only=True, tag="block_load"):
    """Blocks to load from a store, numbered from `first` on until released. `source` is what the
    index said about their location (StoreIndex.look)."""

    first: int
    keys: tuple[bytes, ...]
    source: str = ""


Preparation = CompiledConstraint | AdapterSource | BlockLoad
"""What every rank loads in the background of the steps, before a row needs it."""
Loaded = Future[AdapterFacts | None]
"""Done once every rank is done. The result is one rank's facts about an adapter, None for
others."""


def what_of(item: Preparation) -> str:
    """Return the feature that a preparation belongs to, for messages."""
    if isinstance(item, AdapterSource):
        return "adapters"
    return "KV connectors" if isinstance(item, BlockLoad) else "structured outputs"


class PendingStep(Protocol):
    """A running step."""

    def result(self) -> StepResult:
        """Wait for the result. Raises: EngineDead when a worker is gone."""


class DoneStep:
    """A step that has already run."""

    __slots__ = ("_result",)

    def __init__(self, result: StepResult) -> None:
        self._result = result

    def result(self) -> StepResult:
        """Return the result."""
        return self._result


class Executor(Plugin):
    """Owns the workers. One thread calls it; steps run in the order they were submitted."""

    interface_version: ClassVar[int] = 2
    known_capabilities: ClassVar[Mapping[str, str]] = {
        "async_steps": "submit returns before the step has run",
        "collective_rpc": "calls methods of the workers of all ranks by name",
        "launched_ranks": "a launcher such as torchrun has started the ranks, each as a process "
        "with the same flags",
        "places_ranks": "chooses the machines of its ranks when it starts them",
        "several_ranks": "runs more than one rank",
        "stages": "drives the stages of a pipeline: tells their workers what the last one drew",
        "sleep": "supports sleep mode: its workers release and restore their memory",
    }

    @abstractmethod
    def __init__(self, options: Any, run: RunSpec, worker: Selection) -> None:
        """Start the workers and load the model (the weights are loaded on return)."""

    @abstractmethod
    def kv_layers(self) -> Sequence[CachedLayer]:
        """Return what the model's attention layers cache, in layer order."""

    @abstractmethod
    def free_bytes(self) -> int:
        """Return the bytes that the KV cache may take on the fullest rank."""

    @abstractmethod
    def allocate(self, layout: KVLayout) -> None:
        """Create the KV cache on every rank and warm up. Raises: ConfigError when it cannot."""

    def agreed(self, layout: KVLayout) -> KVLayout:
        """Return the layout to pass to `allocate`: if several engines make the same calls, the
        first engine's. The default: this engine's own."""
        return layout

    @abstractmethod
    def submit(self, plan: StepPlan) -> PendingStep:
        """Submit a step to every rank."""

    def prepare(self, item: Preparation) -> Loaded:
        """Load a constraint, an adapter or blocks on every rank, while steps run. The future raises
        RequestError.

        The default: none of them is supported.
        """
        refused: Loaded = Future()
        refused.set_exception(RequestError(f"this executor does not support {what_of(item)}."))
        return refused

    def sleep(self, level: int) -> None:
        """Make every rank release its memory (see Worker.sleep). Raises: RequestError.

        The default: sleep mode is not supported.
        """
        raise RequestError("this executor does not support sleep mode.")

    def wake_up(self, tags: Sequence[str]) -> None:
        """Make every rank restore its memory (see Worker.wake_up).

        Raises: RequestError, ConfigError. The default: sleep mode is not supported.
        """
        raise RequestError("this executor does not support sleep mode.")

    def collective_rpc(self, call: WorkerCall) -> list[Any]:
        """Run a method on every rank's worker between two steps; return the results in rank order.

        Raises: RequestError naming a rank that failed, or those that did not answer in time; the
        executor stays usable. The default: this is not supported.
        """
        raise RequestError("this executor does not call methods of its workers.")

    @classmethod
    def follow(cls, run: RunSpec, worker: Selection) -> int:
        """Run as a rank driven by an engine in another process, with no engine here, until it ends;
        return the exit status. For executors with launched_ranks. Raises: ConfigError"""
        raise NotImplementedError(f"{cls.__name__} starts its ranks itself")

    @abstractmethod
    def shutdown(self) -> None:
        """End all workers and release their memory. May be called twice."""

    def check(self) -> None:
        """Raise EngineDead when a worker has died. Cheap; called while idle."""

    def on_death(self, callback: Callable[[str], None]) -> None:
        """Register a callback, called from any thread when a worker dies unexpectedly."""

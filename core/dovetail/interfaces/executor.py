"""Executor: calls the workers of every rank and gathers their answers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, ClassVar, Protocol

import msgspec

from dovetail.errors import RequestError
from dovetail.interfaces.adapter_spec import AdapterFacts, AdapterSource
from dovetail.interfaces.plugin import Plugin
from dovetail.interfaces.spec import RunSpec, Selection
from dovetail.interfaces.step import CachedLayer, KVLayout, StepPlan, StepResult
from dovetail.interfaces.structured_output import CompiledConstraint


class WorkerCall(msgspec.Struct, frozen=True, kw_only=True):
    """A method of the workers to call, by its name, or a function by "module:function", which gets
    the worker as its first argument.

    Arguments and answers are what JSON has, and bytes. A caller waits for `timeout_s` (None: as
    long as it takes).
    """

    method: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    timeout_s: float | None = None


class BlockLoad(msgspec.Struct, frozen=True, kw_only=True, tag="block_load"):
    """Blocks to bring from a store, known by the numbers from `first` on until released. `source`
    is what the index says of where they are (StoreIndex.look)."""

    first: int
    keys: tuple[bytes, ...]
    source: str = ""


Preparation = CompiledConstraint | AdapterSource | BlockLoad
"""What every rank loads beside the steps, before a row needs it."""
Loaded = Future[AdapterFacts | None]
"""Done once every rank has: the result is what one of them tells of an adapter, None of others."""


def what_of(item: Preparation) -> str:
    """Return what a preparation is for, in words."""
    if isinstance(item, AdapterSource):
        return "adapters"
    return "KV connectors" if isinstance(item, BlockLoad) else "structured outputs"


class PendingStep(Protocol):
    """A step under way."""

    def result(self) -> StepResult:
        """Wait for the result. Raises: EngineDead when a worker is gone."""


class DoneStep:
    """A step that has run already."""

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
        """Start the workers and load the model (on return the weights are in place)."""

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
        """Return the layout that `allocate` is to get: where several engines make the same calls,
        that of the first. The default: this engine's own."""
        return layout

    @abstractmethod
    def submit(self, plan: StepPlan) -> PendingStep:
        """Hand a step to every rank."""

    def prepare(self, item: Preparation) -> Loaded:
        """Load a constraint, read an adapter or bring blocks, on every rank, during the steps. The
        future raises RequestError.

        The default: this executor supports none of them.
        """
        refused: Loaded = Future()
        refused.set_exception(RequestError(f"this executor does not support {what_of(item)}."))
        return refused

    def sleep(self, level: int) -> None:
        """Let every rank release its memory (see Worker.sleep). Raises: RequestError.

        The default: this executor does not pass that on.
        """
        raise RequestError("this executor does not support sleep mode.")

    def wake_up(self, tags: Sequence[str]) -> None:
        """Let every rank take its memory again (see Worker.wake_up).

        Raises: RequestError, ConfigError. The default: this executor does not pass that on.
        """
        raise RequestError("this executor does not support sleep mode.")

    def collective_rpc(self, call: WorkerCall) -> list[Any]:
        """Have every rank's worker run a method between two steps; return their answers in the
        order of the ranks.

        Raises: RequestError naming a rank that failed, or those that gave no answer in time; the
        executor goes on. The default: this executor does not support that.
        """
        raise RequestError("this executor does not call methods of its workers.")

    @classmethod
    def follow(cls, run: RunSpec, worker: Selection) -> int:
        """Be a rank that an engine in another process drives, without one here, until it ends;
        return the exit status. For executors with launched_ranks. Raises: ConfigError"""
        raise NotImplementedError(f"{cls.__name__} starts its ranks itself")

    @abstractmethod
    def shutdown(self) -> None:
        """End all workers and release their memory. May be called twice."""

    def check(self) -> None:
        """Raise EngineDead when a worker is gone. Cheap; called while idle."""

    def on_death(self, callback: Callable[[str], None]) -> None:
        """Ask to be told (from any thread) when a worker dies on its own."""

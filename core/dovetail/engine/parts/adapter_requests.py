"""AdapterRequests: which requests hold an adapter, and which wait for a slot for theirs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dovetail.engine.active_request import ActiveRequest
from dovetail.engine.messages import (
    AdapterList,
    AnyOperation,
    ListAdapters,
    LoadAdapter,
    UnloadAdapter,
)
from dovetail.engine.parts.adapters import AdapterHolder, Adapters, unknown_adapter
from dovetail.engine.parts.part import EnginePart, Ready
from dovetail.engine.parts.virtual_tokens import verify_room
from dovetail.errors import RequestError
from dovetail.interfaces.data.adapter_spec import AdapterSource
from dovetail.interfaces.data.spec import EngineSpec
from dovetail.interfaces.data.step import StepPlan


class NoAdapters(EnginePart):
    """Refuses requests for adapters, in an engine that serves none."""

    def receive(self, active: ActiveRequest) -> None:
        """Raise RequestError if a request names an adapter."""
        if active.adapter:
            raise unknown_adapter(active.adapter)

    def perform(self, operation: AnyOperation) -> Any:
        """Refuse to load an adapter; list none."""
        if isinstance(operation, LoadAdapter | UnloadAdapter):
            what = "this server does not serve adapters."
            raise RequestError(what, fix="start it with --enable-lora.")
        return AdapterList(()) if isinstance(operation, ListAdapters) else NotImplemented


class AdapterRequests(EnginePart):
    """The requests' holds on the engine's adapters. With `hashes_files`, prefix hashes depend on a
    digest of an adapter's files, because blocks outlive the engine."""

    def __init__(self, adapters: Adapters, spec: EngineSpec, *, hashes_files: bool = False) -> None:
        self._adapters = adapters
        self._first = {_identity(source) for source in spec.adapters}
        self._max_model_tokens = spec.run.max_model_tokens
        self._hashes_files = hashes_files
        self._holders: dict[str, AdapterHolder] = {}
        self._slotless: dict[str, ActiveRequest] = {}

    def perform(self, operation: AnyOperation) -> Any:
        """Load, unload or list adapters. Raises: RequestError. Mutates: the adapters"""
        match operation:
            case LoadAdapter():
                return self._adapters.load(operation.source, replaces=operation.replaces)
            case UnloadAdapter(name):
                return self._adapters.unload(name)
            case ListAdapters():
                return AdapterList(self._adapters.served())
        return NotImplemented

    def describe(self, condition: dict[str, Any], repeats: list[AnyOperation]) -> None:
        """Add what has changed since the start. Mutates: repeats"""
        served = self._adapters.served()
        gone = {name for name, *_ in self._first} - {source.name for source in served}
        new = [source for source in served if _identity(source) not in self._first]
        repeats += [UnloadAdapter(name) for name in sorted(gone)]
        repeats += [LoadAdapter(source=source, replaces=True) for source in new]

    def poll(self) -> None:
        """Serve the adapters that have been read."""
        self._adapters.poll()

    def receive(self, active: ActiveRequest) -> None:
        """Hold a request's adapter, and have it read. Raises: RequestError. Mutates: self"""
        if not active.adapter:
            return
        holder, read = self._adapters.hold(active.adapter)
        self._holders[active.request_id] = holder
        verify_room(active, holder.num_virtual_tokens, self._max_model_tokens)
        key = self._adapters.content_key(holder.key) if self._hashes_files else holder.key
        active.request.use_adapter(key, holder.num_virtual_tokens, self._max_model_tokens)
        active.loads.append(read)

    def must_wait(self, active: ActiveRequest) -> bool:
        """Return whether a request must wait for a slot. Mutates: self, its slot"""
        holder = self._holders.get(active.request_id)
        if holder is None:
            return False
        if not self._adapters.take_slot(holder):
            self._slotless[active.request_id] = active
            return True
        active.request.adapter_slot = holder.slot
        return False

    def take_ready(self) -> Iterable[Ready]:
        """Return the requests that have got a slot. Mutates: self"""
        if not self._slotless or not self._adapters.has_freed:
            return ()
        self._adapters.has_freed = False
        waiting, self._slotless = self._slotless, {}
        return [(active, None) for active in waiting.values() if not self.must_wait(active)]

    def forget(self, active: ActiveRequest) -> None:
        """Release a request's hold. Mutates: self"""
        self._slotless.pop(active.request_id, None)
        holder = self._holders.pop(active.request_id, None)
        if holder is not None:
            self._adapters.release(holder)

    def complete(self, plan: StepPlan) -> StepPlan:
        """Return the plan with the adapter moves that the ranks must do first."""
        return self._adapters.take_moves(plan)

    def forget_memory(self) -> None:
        """Mark all slots as empty."""
        self._adapters.empty_slots()

    def report(self, stats: dict[str, Any]) -> None:
        """Add the adapters that have slots, and those that requests wait for. Mutates: stats"""
        stats["running_adapters"], stats["waiting_adapters"] = self._adapters.names_in_use
        stats["max_adapters"] = self._adapters.max_slots


def _identity(source: AdapterSource) -> tuple[str, ...]:
    return source.name, source.path, source.base, source.owner

"""Admission: requests that wait for something to be loaded before they are queued.

A request waits until its constraint and its adapter are loaded on every rank, then for an adapter
slot. Other requests may overtake it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from dovetail.engine.adapters import AdapterHolder, Adapters, unknown_adapter
from dovetail.engine.messages import EngineRequest
from dovetail.interfaces.executor import Loaded, Preparation

Queue = Callable[[EngineRequest, AdapterHolder | None], None]
"""Takes a request that is ready to be queued, and its hold on an adapter."""
Refuse = Callable[[str, BaseException], None]
"""Called with the id of a request that could not be prepared, and the error."""
Load = Callable[[Preparation], Loaded]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Preparing:
    message: EngineRequest
    loads: tuple[Loaded, ...]
    holder: AdapterHolder | None

    @property
    def is_loaded(self) -> bool:
        return all(load.done() for load in self.loads)

    @property
    def error(self) -> BaseException | None:
        return next((error for load in self.loads if (error := load.exception())), None)


class Admission:
    """The requests of one engine that are not with its scheduler yet."""

    def __init__(self, load: Load, adapters: Adapters | None, queue: Queue, refuse: Refuse) -> None:
        self._load = load
        self._adapters = adapters
        self._queue = queue
        self._refuse = refuse
        self._preparing: dict[str, _Preparing] = {}
        self._slotless: dict[str, _Preparing] = {}

    def __len__(self) -> int:
        return len(self._preparing) + len(self._slotless)

    def __iter__(self) -> Iterator[str]:
        """Return the ids of the requests."""
        yield from self._preparing
        yield from self._slotless

    def add(self, message: EngineRequest) -> None:
        """Queue a request, or start to load what it needs. Raises: RequestError. Mutates: self"""
        loads, holder = [], None
        if message.adapter:
            if self._adapters is None:
                raise unknown_adapter(message.adapter)
            holder, read = self._adapters.hold(message.adapter)
            loads.append(read)
        if message.sampling.constraint is not None:
            loads.append(self._load(message.sampling.constraint))
        if not loads:
            self._queue(message, None)
            return
        preparing = _Preparing(message=message, loads=tuple(loads), holder=holder)
        self._preparing[message.request_id] = preparing

    def admit(self) -> None:
        """Queue the requests that are ready by now. Mutates: self"""
        if self._slotless and self._adapters is not None and self._adapters.has_freed:
            self._adapters.has_freed = False
            waiting, self._slotless = self._slotless, {}
            for preparing in waiting.values():
                self._admit(preparing)
        ready = [name for name, preparing in self._preparing.items() if preparing.is_loaded]
        for name in ready:
            preparing = self._preparing.pop(name)
            error = preparing.error
            if error is None:
                self._admit(preparing)
            else:
                self.release(preparing.holder)
                self._refuse(name, error)

    def abort(self, request_id: str) -> bool:
        """Drop a request; return whether it was here. Mutates: self"""
        found = self._preparing.pop(request_id, None) or self._slotless.pop(request_id, None)
        if found is not None:
            self.release(found.holder)
        return found is not None

    def release(self, holder: AdapterHolder | None) -> None:
        """Release a request's hold on an adapter. Mutates: the adapters"""
        if holder is not None and self._adapters is not None:
            self._adapters.release(holder)

    def _admit(self, preparing: _Preparing) -> None:
        holder = preparing.holder
        if holder is None or self._adapters is None or self._adapters.take_slot(holder):
            self._queue(preparing.message, holder)
        else:
            self._slotless[preparing.message.request_id] = preparing

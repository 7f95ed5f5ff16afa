"""Adapters of a fake engine: names that are served, and no weights."""

from __future__ import annotations

from typing import Any

from dovetail.engine.parts.adapters import unknown_adapter
from dovetail.errors import RequestError
from dovetail.interfaces.data.adapter_spec import AdapterSource, AdapterSpec
from dovetail.interfaces.data.spec import EngineSpec


def fake_room(**changes: Any) -> AdapterSpec:
    """Return the room for adapters of a fake engine; fields of AdapterSpec may be changed."""
    fields: dict[str, Any] = {"dtype": "float32", "max_slots": 2, "max_host": 4}
    return AdapterSpec(**(fields | changes))


class FakeAdapters:
    """What AsyncEngine does with adapters."""

    def __init__(self, spec: EngineSpec) -> None:
        self.loaded = {source.name: source for source in spec.adapters}
        self.broken_adapters: set[str] = set()
        self.num_lists = 0

    async def load_adapter(self, source: AdapterSource, *, replaces: bool = False) -> None:
        """Serve an adapter unless the test broke it. Raises: RequestError as the engine does"""
        if source.name in self.loaded and not replaces:
            raise RequestError("is loaded already.", where="lora_name")
        if source.name in self.broken_adapters:
            raise RequestError("holds numbers that are not finite.", where=source.path)
        self.loaded[source.name] = source

    async def unload_adapter(self, name: str) -> None:
        """Serve an adapter no more. Raises: RequestError"""
        self._check_adapter(name)
        del self.loaded[name]

    async def adapters(self) -> tuple[AdapterSource, ...]:
        """Return the adapters that are served, and count the question."""
        self.num_lists += 1
        return tuple(self.loaded.values())

    def _check_adapter(self, name: str) -> None:
        if name and name not in self.loaded:
            raise unknown_adapter(name)

"""Adapters of several engines: loaded and listed where all agree, and routed by their prefixes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from dovetail.engine.client.operations import EngineOperations
from dovetail.engine.client.requests.input_processor import InputProcessor
from dovetail.engine.client.routing import Routing
from dovetail.engine.client.text.vocabularies import Vocabularies
from dovetail.engine.messages import AdapterList, LoadAdapter, Operation, UnloadAdapter
from dovetail.errors import RequestError
from dovetail.interfaces.data.adapter_spec import AdapterSource
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.router import RoutedRequest
from dovetail_testing.fakes.async_engine import FakeTokenizer, fake_spec


class Engines(EngineOperations):
    """Two engines, of which the second cannot read what it is told it cannot."""

    def __init__(self) -> None:
        self.spec = fake_spec()
        self.vocabularies = Vocabularies(self.spec, FakeTokenizer())
        self.served: list[dict[str, AdapterSource]] = [{}, {}]
        self.unreadable: set[str] = set()

    async def call_each(self, operation: Operation[Any], timeout_s: float | None = None) -> Any:
        """Do it in both; raise what the first that failed raised."""
        ended = [self._done(number, operation) for number in range(2)]
        for one in ended:
            if isinstance(one, RequestError):
                raise one
        return ended

    def _done(self, number: int, operation: Operation[Any]) -> Any:
        served = self.served[number]
        match operation:
            case LoadAdapter(source=source) if number == 1 and source.path in self.unreadable:
                return RequestError("cannot be read.")
            case LoadAdapter(source=source, replaces=replaces):
                if source.name in served and not replaces:
                    return RequestError("is loaded already.")
                served[source.name] = source
            case UnloadAdapter(name):
                return None if served.pop(name, None) else RequestError("is not there.")
            case _:
                return AdapterList(tuple(served.values()))
        return None


def source(name: str, path: str = "p") -> AdapterSource:
    return AdapterSource(name=name, path=path)


def test_what_only_some_engines_could_load_is_served_by_none() -> None:
    engines = Engines()
    engines.unreadable.add("bad")

    async def work() -> None:
        await engines.load_adapter(source("a"))
        with pytest.raises(RequestError, match="cannot be read"):
            await engines.load_adapter(source("b", "bad"))
        assert [list(served) for served in engines.served] == [["a"], ["a"]]
        with pytest.raises(RequestError, match="loaded already"):
            await engines.load_adapter(source("a"))
        assert [one.name for one in await engines.adapters()] == ["a"]
        await engines.unload_adapter("a")
        assert await engines.adapters() == ()

    asyncio.run(work())


def test_what_not_all_engines_serve_is_not_listed() -> None:
    engines = Engines()
    engines.served = [{"a": source("a"), "b": source("b")}, {"b": source("b")}]
    assert [one.name for one in asyncio.run(engines.adapters())] == ["b"]


class Noting:
    """A router that notes the salts that it is told."""

    def __init__(self) -> None:
        self.salts: list[str] = []

    def choose(self, request: RoutedRequest, engines: Sequence[Any]) -> int:
        """Return the only engine."""
        self.salts.append(request.cache_salt)
        return 0


def test_prefixes_of_an_adapter_are_its_own_to_a_router() -> None:
    spec = fake_spec()
    made = InputProcessor(spec, Vocabularies(spec, FakeTokenizer()))
    engine, router = SimpleNamespace(number=0), Noting()
    routing: Any = Routing(spec, [engine])  # type: ignore[list-item]
    for salt in ("", "salt"):
        for adapter in ("", "x", "y"):
            asked = made.prepare("hi", SamplingParams(), "r", cache_salt=salt, adapter=adapter)
            routing._chosen(router, asked, [engine])
    assert router.salts[0] == "" and router.salts[3] == "salt"
    assert len(set(router.salts)) == 6

"""The KV connectors in contrib, importable beside stand-ins for the libraries that they use."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from dovetail.interfaces.data.sealed_block import HEADER_BYTES, seal
from dovetail.interfaces.kv_connector import KVConnector, StoreFacts
from dovetail.registry.options import options_for

CONTRIB = Path(__file__).resolve().parents[2] / "contrib"
KEY = b"\0" + bytes(range(32))
FACTS: dict[str, Any] = {
    "identity": "a" * 64,
    "block_bytes": HEADER_BYTES + 100,
    "world_size": 2,
}


def with_library(monkeypatch: pytest.MonkeyPatch, package: str, **modules: dict[str, Any]) -> None:
    """Make contrib/PACKAGE importable, and modules with these contents; `__` in a name is a dot."""
    monkeypatch.syspath_prepend(str(CONTRIB / package))
    for name, contents in modules.items():
        name = name.replace("__", ".")
        module = ModuleType(name)
        module.__spec__ = ModuleSpec(name, None, is_package=True)
        vars(module).update(contents)
        monkeypatch.setitem(sys.modules, name, module)


def made(cls: type[KVConnector], options: dict[str, Any]) -> KVConnector:
    """Return a connector."""
    return cls(options_for(cls, options))


def facts(**changes: Any) -> StoreFacts:
    """Return those of two ranks, which differ in something."""
    return StoreFacts(**(FACTS | changes))


def stores(connector: KVConnector) -> list[Any]:
    """Return the sides of both ranks."""
    return [connector.store(facts(rank=rank)) for rank in range(2)]


def block(rank: int, key: bytes = KEY) -> bytearray:
    """Return a rank's sealed block."""
    content = bytearray(HEADER_BYTES) + bytes((rank + 1,)) * 100
    seal(content, key, rank)
    return content


def until(is_so: Callable[[], bool]) -> None:
    """Wait until a condition holds, for 20 seconds."""
    deadline_s = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < deadline_s, "the condition never held"
        time.sleep(0.001)


def check_a_store_of_values(first: KVConnector, second: KVConnector) -> None:
    """Check that two engines find each other's blocks once every rank has put its part."""
    index, (one, other) = first.index(facts()), stores(first)
    assert index.keep(KEY) and not index.keep(KEY)
    one.write(KEY, memoryview(block(0)))
    assert not index.has(KEY)
    assert index.keep(KEY)  # what is not there is wanted again
    other.write(KEY, memoryview(block(1)))
    theirs = second.index(facts())
    until(lambda: theirs.has(KEY) and index.has(KEY))  # a server may take a put in later
    assert [bytes(one.read(KEY)), bytes(other.read(KEY))] == [bytes(block(0)), bytes(block(1))]
    stranger = second.store(facts(identity="b" * 64))
    assert stranger.read(KEY) is None
    one.drop(KEY)
    one.drop(KEY)
    assert one.read(KEY) is None
    one.write(KEY, memoryview(block(0)))
    assert bytes(one.read(KEY)) == bytes(block(0))
    for side in (index, theirs, one, other, stranger) * 2:
        side.close()

"""The Mooncake connector against a stand-in for the store's documented Python interface."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import ClassVar

import pytest

from dovetail.errors import ConfigError
from dovetail.interfaces.kv_connector import KVConnector
from support.kv_packages import (
    KEY,
    block,
    check_a_store_of_values,
    facts,
    made,
    stores,
    with_library,
)

HERE = {"master": "here"}


class FakeStore:
    """As documented: status 0 is success, `is_exist` says 1, 0 or less, a missing value is empty.
    Clients of one master see the same values."""

    clusters: ClassVar[dict[str, dict[str, bytes]]] = {}
    lent: ClassVar[list[int]] = []

    def setup(
        self, host: str, metadata: str, lent: int, local: int, protocol: str, rdma: str, master: str
    ) -> int:
        assert protocol in ("tcp", "rdma") and lent >= 0 and local > 0 and host and metadata
        self.lent.append(lent)
        if master == "down":
            return -1
        self.values: dict[str, bytes] | None = self.clusters.setdefault(master, {})
        return 0

    def put(self, key: str, value: bytes) -> int:
        assert self.values is not None and isinstance(value, bytes)
        if len(self.values) >= 100:
            return -200
        self.values[key] = value
        return 0

    def get(self, key: str) -> bytes:
        assert self.values is not None
        return self.values.get(key, b"")

    def is_exist(self, key: str) -> int:
        assert self.values is not None
        return int(key in self.values)

    def remove(self, key: str) -> int:
        assert self.values is not None
        return 0 if self.values.pop(key, None) is not None else -704

    def close(self) -> int:
        assert self.values is not None, "closed twice"
        self.values = None
        return 0


@pytest.fixture
def mooncake(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[KVConnector]]:
    library = {"MooncakeDistributedStore": FakeStore}
    with_library(monkeypatch, "mooncake", mooncake={}, mooncake__store=library)
    from dovetail_mooncake.connector import Mooncake

    yield Mooncake
    FakeStore.clusters.clear()
    FakeStore.lent.clear()


def test_engines_find_each_others_blocks(mooncake: type[KVConnector]) -> None:
    check_a_store_of_values(made(mooncake, HERE), made(mooncake, HERE))
    store, _ = stores(made(mooncake, HERE))
    store.write(KEY, block(0))
    store.drop(KEY)
    assert not made(mooncake, HERE).index(facts(world_size=1)).has(KEY)


def test_what_is_lent_and_what_finds_no_room(mooncake: type[KVConnector]) -> None:
    connector = made(mooncake, HERE | {"lent_bytes": 5})
    store, _ = stores(connector)
    connector.index(facts())
    assert FakeStore.lent == [5, 5, 0]
    FakeStore.clusters["here"] |= {str(number): b"x" for number in range(100)}
    with pytest.raises(OSError, match="-200"):
        store.write(KEY, block(0))


def test_what_cannot_work_says_why(
    mooncake: type[KVConnector], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="cannot be joined"):
        made(mooncake, {"master": "down"}).index(facts())
    with pytest.raises(ConfigError, match="no master is named"):
        made(mooncake, {}).index(facts())
    assert mooncake.unavailable_reason() is None
    monkeypatch.delitem(sys.modules, "mooncake.store")
    reason = mooncake.unavailable_reason()
    assert reason is not None and "pip install mooncake-transfer-engine" in reason

"""The Mooncake connector against a stand-in for the store's documented Python interface."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pytest

from dovetail.errors import ConfigError
from dovetail.interfaces.kv_connector import KVConnector, StoreFacts
from dovetail.interfaces.sealed_block import HEADER_BYTES, seal
from dovetail.registry.options import options_for

PACKAGE = Path(__file__).resolve().parents[2] / "contrib/mooncake"
FACTS = StoreFacts(identity="a" * 64, block_bytes=HEADER_BYTES + 100, world_size=2)
KEY = b"\0" + bytes(range(32))


class FakeStore:
    """As documented: status 0 is success, `is_exist` says 1, 0 or less, a missing value is empty.
    Clients of one master see the same values."""

    clusters: ClassVar[dict[str, dict[str, bytes]]] = {}

    def setup(
        self, host: str, metadata: str, lent: int, local: int, protocol: str, rdma: str, master: str
    ) -> int:
        assert protocol in ("tcp", "rdma") and lent >= 0 and local > 0 and host and metadata
        self.lent = lent
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
def connector_class(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[KVConnector]]:
    monkeypatch.syspath_prepend(str(PACKAGE))
    package, store = ModuleType("mooncake"), ModuleType("mooncake.store")
    package.__spec__ = ModuleSpec("mooncake", None)
    store.__spec__ = ModuleSpec("mooncake.store", None)
    store.MooncakeDistributedStore = FakeStore  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mooncake", package)
    monkeypatch.setitem(sys.modules, "mooncake.store", store)
    from dovetail_mooncake.connector import Mooncake

    yield Mooncake
    FakeStore.clusters.clear()


def made(cls: type[KVConnector], **options: Any) -> KVConnector:
    return cls(options_for(cls, {"master": "here", **options}))


def block(rank: int) -> bytearray:
    content = bytearray(HEADER_BYTES) + bytes((rank + 1,)) * 100
    seal(content, KEY, rank)
    return content


def ranks(connector: KVConnector) -> list[Any]:
    facts = {name: getattr(FACTS, name) for name in FACTS.__struct_fields__}
    return [connector.store(StoreFacts(**(facts | {"rank": rank}))) for rank in range(2)]


def test_a_block_is_there_once_every_rank_has_put_its_part(
    connector_class: type[KVConnector],
) -> None:
    connector = made(connector_class)
    index, (first, second) = connector.index(FACTS), ranks(connector)
    assert index.keep(KEY) and not index.keep(KEY)
    first.write(KEY, memoryview(block(0)))
    assert not index.has(KEY)
    assert index.keep(KEY)  # what is not there is wanted again
    second.write(KEY, memoryview(block(1)))
    assert made(connector_class).index(FACTS).has(KEY)
    assert (bytes(first.read(KEY)), bytes(second.read(KEY))) == (bytes(block(0)), bytes(block(1)))
    first.drop(KEY)
    first.drop(KEY)
    assert first.read(KEY) is None and not index.has(KEY)
    for side in (index, first, second, index, first, second):
        side.close()


def test_other_models_and_full_stores(connector_class: type[KVConnector]) -> None:
    connector = made(connector_class, lent_bytes=5)
    first, _ = ranks(connector)
    assert first._client.lent == 5 and connector.index(FACTS)._client.lent == 0  # type: ignore[attr-defined]
    first.write(KEY, block(0))
    other = StoreFacts(identity="b" * 64, block_bytes=FACTS.block_bytes, world_size=2)
    assert connector.store(other).read(KEY) is None
    FakeStore.clusters["here"] |= {str(number): b"x" for number in range(100)}
    with pytest.raises(OSError, match="-200"):
        first.write(KEY[::-1], block(0))


def test_what_cannot_work_says_why(
    connector_class: type[KVConnector], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="cannot be joined"):
        made(connector_class, master="down").index(FACTS)
    with pytest.raises(ConfigError, match="no master is named"):
        made(connector_class, master="").index(FACTS)
    assert connector_class.unavailable_reason() is None
    monkeypatch.delitem(sys.modules, "mooncake.store")
    reason = connector_class.unavailable_reason()
    assert reason is not None and "pip install mooncake-transfer-engine" in reason

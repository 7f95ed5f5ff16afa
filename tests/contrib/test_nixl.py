"""The NIXL connector against a stand-in for NIXL's documented Python interface."""

from __future__ import annotations

import ctypes
import itertools
import json
import secrets
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from dovetail.config.rules.steps.kv_transfer import own_name
from dovetail.errors import ConfigError
from dovetail.interfaces.kv_connector import KVConnector
from dovetail.registry import discovery
from support.kv_packages import KEY, block, facts, made, with_library

Region = tuple[int, int, int]


class FakeConfig:
    def __init__(self, *, backends: Sequence[str]) -> None:
        self.backends = backends


class FakeAgent:
    """As documented: memory is registered and told in metadata; a transfer between registered
    memory of two agents that know each other is DONE after a while, and then notifies the other."""

    agents: ClassVar[dict[str, FakeAgent]] = {}
    writes: ClassVar[list[int]] = []
    fails: ClassVar[bool] = False

    def __init__(self, name: str, config: FakeConfig) -> None:
        self.name, self.agents[name] = name, self
        self.own: dict[int, Region] = {}
        self.known: dict[str, list[Region]] = {}
        self.notices: dict[str, list[bytes]] = {}
        self.numbers = itertools.count()
        self.open: dict[int, tuple[Any, ...]] = {}

    def get_plugin_list(self) -> list[str]:
        return ["UCX", "POSIX"]

    def register_memory(self, tensor: torch.Tensor) -> int:
        number = next(self.numbers)
        self.own[number] = (tensor.data_ptr(), tensor.numel(), 0)
        return number

    def deregister_memory(self, number: int) -> None:
        del self.own[number]

    def get_agent_metadata(self) -> bytes:
        return json.dumps((self.name, list(self.own.values()))).encode()

    def add_remote_agent(self, metadata: bytes) -> str:
        name, regions = json.loads(metadata)
        assert name not in self.known, "an agent is added twice"
        self.known[name] = regions
        return str(name)

    def remove_remote_agent(self, name: str) -> None:
        del self.known[name]

    def get_xfer_descs(self, descs: list[Region], mem_type: str) -> list[Region]:
        assert mem_type == "DRAM"
        return descs

    def initialize_xfer(
        self, operation: str, own: list[Region], theirs: list[Region], agent: str, notice: bytes
    ) -> int:
        assert operation == "WRITE"
        for descs, regions in ((own, list(self.own.values())), (theirs, self.known[agent])):
            for address, size, _ in descs:
                if not any(a <= address and address + size <= a + s for a, s, _ in regions):
                    raise RuntimeError("NIXL_ERR_NOT_FOUND")
        number = next(self.numbers)
        self.open[number] = (own, theirs, agent, notice)
        return number

    def transfer(self, handle: int) -> str:
        return "ERR" if self.fails else "PROC"

    def check_xfer_state(self, handle: int) -> str:
        own, theirs, agent, notice = self.open[handle]
        for (source, size, _), (target, room, _) in zip(own, theirs, strict=True):
            assert size == room
            ctypes.memmove(target, source, size)
            self.writes.append(size)
        self.agents[agent].notices.setdefault(self.name, []).append(notice)
        return "DONE"

    def release_xfer_handle(self, handle: int) -> None:
        del self.open[handle]

    def get_new_notifs(self) -> dict[str, list[bytes]]:
        found, self.notices = self.notices, {}
        return found


@pytest.fixture
def nixl(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[KVConnector]]:
    api = {"nixl_agent": FakeAgent, "nixl_agent_config": FakeConfig}
    with_library(monkeypatch, "nixl", nixl={}, nixl___api=api)
    from dovetail_nixl.connector import Nixl

    yield Nixl
    FakeAgent.agents.clear()
    FakeAgent.writes.clear()


@pytest.fixture
def ports() -> dict[str, Any]:
    port = 10_000 + secrets.randbelow(550) * 40
    return {"host_bytes": 1 << 20, "kv_port": port, "kv_parallel_size": 2}


class Pair:
    """An engine of two ranks that has a block, and one of a single rank that asks for it."""

    def __init__(self, giver: KVConnector, taker: KVConnector) -> None:
        own = {"engine": 0, "unit_tokens": 8}
        self.givers = [giver.store(facts(rank=rank, **own)) for rank in range(2)]
        for rank, store in enumerate(self.givers):
            store.write(KEY, bytes(block(rank)))
        other = facts(engine=1, world_size=1, unit_tokens=8)
        self.index, self.taker = taker.index(other), taker.store(other)
        self.keys = [KEY, bytes(reversed(KEY))]

    def gathered(self) -> list[Any]:
        """Return what comes of a block that is there and of one that is not."""
        source = self.index.look(self.keys, {})
        assert source and self.index.has(KEY) and not self.index.has(self.keys[1])
        found = {}
        for key, parts in self.taker.gather(self.keys, source, lambda num_ranks: (0, 1)):
            found[key] = parts and [(part.rank, bytes(part.block)) for part in parts]
        return [found[key] for key in self.keys]

    def __enter__(self) -> Pair:
        return self

    def __exit__(self, *told: object) -> None:
        for side in (self.index, self.taker, *self.givers) * 2:
            side.close()


WANTED = [[(0, bytes(block(0))), (1, bytes(block(1)))], None]


def test_blocks_are_written_into_the_asking_engines_memory(
    nixl: type[KVConnector], ports: dict[str, Any]
) -> None:
    with Pair(made(nixl, ports), made(nixl, ports)) as pair:
        for _ in range(3):
            assert pair.gathered() == WANTED
        assert FakeAgent.writes == [len(block(0))] * 6
    assert not any(agent.own or agent.known or agent.open for agent in FakeAgent.agents.values())


def test_between_machines_engines_prove_a_secret(
    nixl: type[KVConnector],
    ports: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from dovetail_plugins.kv_connectors import _peer_client

    monkeypatch.setattr(_peer_client, "is_served", lambda place: False)
    (tmp_path / "secret").write_text("0123456789abcdef")
    options = ports | {"secret_file": str(tmp_path / "secret")}
    with Pair(made(nixl, options), made(nixl, options)) as pair:
        assert pair.gathered() == WANTED and FakeAgent.writes == [len(block(0))] * 2


def test_where_nixl_fails_blocks_come_in_messages(
    nixl: type[KVConnector], ports: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Pair(made(nixl, ports), made(nixl, ports)) as pair:
        monkeypatch.setattr(FakeAgent, "fails", True)
        assert pair.gathered() == WANTED and not FakeAgent.writes
        monkeypatch.setattr(FakeAgent, "fails", False)
        monkeypatch.delattr(FakeAgent, "initialize_xfer")
        assert pair.gathered() == WANTED and not FakeAgent.writes


def test_the_name_that_vllm_has_for_it_finds_it(nixl: type[KVConnector]) -> None:
    discovery.forget()
    assert own_name("NixlConnector") == own_name("nixl") == "nixl"
    assert own_name("LMCacheConnectorV1") == "LMCacheConnectorV1"  # is not there, and says so
    assert own_name("OffloadingConnector") == "offloading"


def test_what_cannot_work_says_why(
    nixl: type[KVConnector], ports: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="no backend pigeon; it has UCX, POSIX"):
        made(nixl, ports | {"backends": ["UCX", "pigeon"]}).store(facts())
    assert nixl.unavailable_reason() is None
    monkeypatch.delitem(sys.modules, "nixl")
    reason = nixl.unavailable_reason()
    assert reason is not None and "pip install nixl" in reason

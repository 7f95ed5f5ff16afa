"""Parts of KV connectors alone: memory between engines, and several connectors as one."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from dovetail.interfaces.kv_connector import BlockStore, Part, StoreIndex
from dovetail_plugins.kv_connectors import _peer_client
from dovetail_plugins.kv_connectors._eviction import eviction_of
from dovetail_plugins.kv_connectors._peer_client import PeerEngine
from dovetail_plugins.kv_connectors._peer_memory import SharedMemory
from dovetail_plugins.kv_connectors._peer_messages import PeerAddress, PeerFacts
from dovetail_plugins.kv_connectors._peer_server import HostBlocks, PeerServer
from dovetail_plugins.kv_connectors.multi import MultiIndex, MultiStore

ASKING = """
import sys
from dovetail_plugins.kv_connectors._peer_memory import SharedMemory
landing = SharedMemory().landing(4096, is_here=True)
print(landing.name(), flush=True)
for _ in sys.stdin:
    print(bytes(landing.view[:6]).decode(), flush=True)
"""


@pytest.fixture
def asking() -> Iterator[subprocess.Popen[str]]:
    """A process that has made a landing, and tells what lies there when it is asked."""
    with subprocess.Popen(
        [sys.executable, "-c", ASKING], stdin=-1, stdout=-1, text=True, env=dict(os.environ)
    ) as process:
        yield process
        process.kill()


def test_a_process_that_is_killed_leaves_no_memory_behind(asking: subprocess.Popen[str]) -> None:
    assert asking.stdin is not None and asking.stdout is not None
    before, giving = set(Path("/dev/shm").iterdir()), SharedMemory()
    name = asking.stdout.readline().strip()
    assert giving.lay([b"abc", None, b"def", bytes(4096)], name) == (3, -1, 3, -1)
    print(file=asking.stdin, flush=True)
    assert asking.stdout.readline() == "abcdef\n"
    assert set(Path("/dev/shm").iterdir()) <= before
    asking.send_signal(signal.SIGKILL)
    asking.wait()
    own = SharedMemory().landing(100, is_here=True)
    assert own is not None and giving.lay([b"x"], own.name()) == (1,)
    with pytest.raises(FileNotFoundError):  # by now its memory was let go of here too
        giving.lay([b"abc"], name)
    own.close()
    giving.close()


def test_only_the_memory_that_was_told_is_written() -> None:
    giving = SharedMemory()
    landing = giving.landing(100, is_here=True)
    assert landing is not None
    process, number, label = landing.name().split("/")
    for name in (f"{process}/{number}/dovetail-kv-other", f"{process}/1/{label}", "../x/y", "x"):
        with pytest.raises((OSError, ValueError)):
            giving.lay([b"abc"], name)
    assert bytes(landing.view[:3]) == bytes(3)
    assert giving.landing(100, is_here=False) is None
    landing.close()


class Recorder:
    """A side of a connector that notes which of its methods are called, and finds nothing."""

    def __init__(self) -> None:
        self.called: list[str] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*values: Any) -> Any:
            self.called.append(name)
            return () if name in ("take_dropped", "gather") else None

        return call


VALUES: dict[str, tuple[Any, ...]] = {
    "has": (b"k",),
    "keep": (b"k",),
    "look": ([b"k"], {}),
    "ticket": (16,),
    "used": ([b"k"],),
    "lost": ([b"k"],),
    "take_dropped": (),
    "read": (b"k",),
    "gather": ([b"k"], "", lambda num_ranks: (0,)),
    "write": (b"k", b"block"),
    "drop": (b"k",),
    "close": (),
}


@pytest.mark.parametrize(("side", "several"), [(StoreIndex, MultiIndex), (BlockStore, MultiStore)])
def test_several_connectors_hand_every_method_on(side: type, several: Callable[..., Any]) -> None:
    for name in [name for name in vars(side) if not name.startswith("_")]:
        recorders = [Recorder(), Recorder()]
        told = getattr(several(recorders), name)(*VALUES[name])
        if name == "gather":
            assert list(told) == [(b"k", None)]
        assert [name in one.called for one in recorders] == [True, True], name


class Holder(BlockStore, StoreIndex):
    """Has one block, read from a source of its own; raises where it has none."""

    def __init__(self, name: str, *keys: bytes) -> None:
        self.name = name
        self.keys = keys

    def has(self, key: bytes) -> bool:
        return key in self.keys

    def keep(self, key: bytes) -> bool:
        return False

    def look(self, keys: Any, params: Any) -> str:
        return self.name

    def ticket(self, num_tokens: int) -> dict[str, Any]:
        return {"from": self.name} if self.name else {}

    def read(self, key: bytes) -> None:
        return None

    def write(self, key: bytes, block: Any) -> None:
        return None

    def gather(self, keys: Any, source: str, ranks_for: Any) -> Any:
        assert source == self.name
        for key in keys:
            if not self.keys:
                raise OSError("it is broken")
            yield key, [Part(rank=0, num_ranks=1, block=key)] if key in self.keys else None


def test_each_of_several_reads_from_its_own_place() -> None:
    holders = [Holder("", b"a"), Holder("broken"), Holder("peer", b"a", b"b")]
    index, store = MultiIndex(holders), MultiStore(holders)
    source = index.look([b"a", b"b", b"c"], {})
    found = dict(store.gather([b"a", b"b", b"c"], source, lambda num_ranks: (0,)))
    assert {key: parts and parts[0].block for key, parts in found.items()} == {
        b"a": b"a",
        b"b": b"b",
        b"c": None,
    }
    assert index.ticket(16) == {"from": "broken"}
    assert MultiIndex(holders[:1]).look([b"a"], {}) == ""
    with pytest.raises(OSError, match="broken"):
        list(holders[1].gather([b"c"], "broken", None))


def facts_of(rank: int) -> PeerFacts:
    return PeerFacts(identity="m", unit_tokens=16, rank=rank, num_ranks=2, block_bytes=8)


def test_an_engine_that_starts_after_it_was_asked_is_asked_again_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_peer_client, "LEFT_ALONE_S", 1000.0)
    port = 10_000 + secrets.randbelow(550) * 40
    with (
        closing(PeerEngine(PeerAddress("127.0.0.1", port), facts_of(0), None)) as peer,
        ExitStack() as s,
    ):
        for rank in range(2):
            assert peer.which([b"k"], 0.0) == frozenset()
            assert peer.is_left_alone
            host_blocks = HostBlocks(eviction_of("lru", 8))
            host_blocks.put(b"k", b"block")
            place = PeerAddress("127.0.0.1", port + rank)
            s.enter_context(
                closing(PeerServer(host_blocks, facts_of(rank), place, None, SharedMemory()))
            )
            assert not peer.is_left_alone
        assert peer.which([b"k"], 0.0) == {b"k"}

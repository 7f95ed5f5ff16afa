"""The LMCache connector against a stand-in for LMCache's server, its messages and its keys."""

from __future__ import annotations

import contextlib
import enum
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch

from dovetail.errors import ConfigError
from dovetail.interfaces.kv_connector import KVConnector
from dovetail.processes.handshake import read_exactly
from support.kv_packages import (
    KEY,
    block,
    check_a_store_of_values,
    facts,
    made,
    stores,
    until,
    with_library,
)

PUT, GET, EXIST, SUCCESS, FAIL = 1, 2, 3, 200, 400
KEY_LETTERS = 150
REQUEST, ANSWER = struct.Struct(f"9i{KEY_LETTERS}s"), struct.Struct("9i")
UINT8 = 6


class Format(enum.Enum):
    BINARY = 4


@dataclass
class Key:
    """As documented: names, ranks, a hash and a type, told apart by `@`."""

    model_name: str
    world_size: int
    worker_id: int
    chunk_hash: int
    dtype: torch.dtype

    def to_string(self) -> str:
        assert self.dtype is torch.uint8 and "@" not in self.model_name
        parts = (self.model_name, self.world_size, self.worker_id, f"{self.chunk_hash:x}", "uint8")
        return "@".join(map(str, parts))


@dataclass
class Request:
    """As documented: nine numbers, the last four the shape, and the key filled up with blanks."""

    command: int
    key: Key
    length: int
    fmt: Format
    dtype: torch.dtype
    shape: torch.Size
    location: str | None = None

    def serialize(self) -> bytes:
        key = self.key.to_string().encode()
        assert len(key) <= KEY_LETTERS and len(self.shape) == 4
        numbers = (self.command, self.length, self.fmt.value, UINT8, 0, *self.shape)
        return REQUEST.pack(*numbers, key.ljust(KEY_LETTERS))


class Answer:
    """As documented: nine numbers, the first two the code and the size of what follows."""

    @staticmethod
    def packlength() -> int:
        return ANSWER.size

    @staticmethod
    def deserialize(data: bytes) -> SimpleNamespace:
        code, length, *_ = ANSWER.unpack(data)
        if code not in (SUCCESS, FAIL):
            raise KeyError(code)
        return SimpleNamespace(code=code, length=length)


class Server:
    """Keeps values; `says` is sent in place of an answer, if it is set."""

    def __init__(self, port: int = 0) -> None:
        self.values: dict[str, bytes] = {}
        self.says: bytes | None = None
        self.num_puts = 0
        self.listener = socket.create_server(("127.0.0.1", port))
        self.port = self.listener.getsockname()[1]
        self.connections: list[socket.socket] = []
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        try:
            while True:
                connection, _ = self.listener.accept()
                self.connections.append(connection)
                threading.Thread(target=self.serve, args=(connection,), daemon=True).start()
        except OSError:
            return

    def serve(self, connection: socket.socket) -> None:
        try:
            while True:
                command, length, *_, key = REQUEST.unpack(read_exactly(connection, REQUEST.size))
                self.answer(connection, command, length, key.decode().strip())
        except (OSError, EOFError):
            connection.close()

    def answer(self, connection: socket.socket, command: int, length: int, key: str) -> None:
        if command == PUT:
            self.values[key] = read_exactly(connection, length)
            self.num_puts += 1
            return
        value = self.values.get(key)
        code = FAIL if value is None else SUCCESS
        content = value if value is not None and command == GET else b""
        head = self.says or ANSWER.pack(code, len(content), 1, 2, 0, 0, 0, 0, 0)
        connection.sendall(head + content)

    def close(self) -> None:
        with contextlib.suppress(OSError):  # closed already
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for connection in self.connections:
            connection.close()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


@pytest.fixture
def lmcache(monkeypatch: pytest.MonkeyPatch) -> type[KVConnector]:
    constants = SimpleNamespace(
        CLIENT_PUT=PUT,
        CLIENT_GET=GET,
        CLIENT_EXIST=EXIST,
        SERVER_SUCCESS=SUCCESS,
        SERVER_FAIL=FAIL,
    )
    protocol = {"Constants": constants, "ClientMetaMessage": Request, "ServerMetaMessage": Answer}
    with_library(
        monkeypatch,
        "lmcache",
        lmcache={},
        lmcache__utils={"CacheEngineKey": Key},
        lmcache__v1={},
        lmcache__v1__memory_management={"MemoryFormat": Format},
        lmcache__v1__protocol=protocol,
    )
    from dovetail_lmcache.connector import LMCache

    monkeypatch.setattr("dovetail_lmcache.connector.LEFT_ALONE_S", 0.05)
    return LMCache


def connected(cls: type[KVConnector], server: Server) -> KVConnector:
    return made(cls, {"remote_url": f"lm://127.0.0.1:{server.port}", "timeout_s": 2})


def test_engines_find_each_others_blocks(lmcache: type[KVConnector], server: Server) -> None:
    check_a_store_of_values(connected(lmcache, server), connected(lmcache, server))
    until(lambda: server.num_puts == 3)  # nothing is removed: the dropped block was written over
    assert len(server.values) == 2


def test_what_another_engine_has_put_is_not_put_again(
    lmcache: type[KVConnector], server: Server
) -> None:
    for number in range(2):
        with contextlib.closing(connected(lmcache, server).store(facts())) as store:
            store.write(KEY, block(0))
            assert bytes(store.read(KEY) or b"") == bytes(block(0)), number
    assert server.num_puts == 1


def test_a_server_that_ends_or_talks_nonsense_is_left_alone_for_a_while(
    lmcache: type[KVConnector], server: Server
) -> None:
    connector = connected(lmcache, server)
    index, (store, _) = connector.index(facts(world_size=1)), stores(connector)
    server.says = ANSWER.pack(7, 0, 0, 0, 0, 0, 0, 0, 0)
    with pytest.raises(OSError, match="is not one"):
        store.read(KEY)
    with pytest.raises(OSError, match="just not answered"):
        store.read(KEY)
    assert not index.has(KEY)
    server.says = None
    time.sleep(0.06)
    assert store.read(KEY) is None and not index.has(KEY)
    server.close()
    with pytest.raises(OSError):
        store.write(KEY, block(0))
    assert not index.has(KEY)
    back = Server(server.port)
    time.sleep(0.06)
    store.write(KEY, block(0))
    assert bytes(store.read(KEY)) == bytes(block(0))
    for side in (index, store, back):
        side.close()


def test_what_cannot_work_says_why(
    lmcache: type[KVConnector], monkeypatch: pytest.MonkeyPatch
) -> None:
    for url, said in (("", "no server is named"), ("redis://a:1", "not the address of an LMCache")):
        with pytest.raises(ConfigError, match=said):
            made(lmcache, {"remote_url": url}).index(facts())
    assert lmcache.unavailable_reason() is None
    monkeypatch.delitem(sys.modules, "lmcache")
    reason = lmcache.unavailable_reason()
    assert reason is not None and "pip install lmcache" in reason

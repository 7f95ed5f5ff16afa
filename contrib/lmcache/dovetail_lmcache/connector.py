"""LMCache: blocks in an LMCache server, memory of another process that several engines share.

A block is a value of bytes under a key made of its name. The protocol: a message of fixed size with
a command and a key, after a put the bytes; get and exist are answered by another one, after a get
the bytes. Source: LMCache's documentation, "LMCache Server", and its module lmcache.v1.protocol,
whose messages are used here.
"""

from __future__ import annotations

import contextlib
import hashlib
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from dovetail.errors import ConfigError
from dovetail.interfaces.kv_connector import Buffer, KVConnector, StoreFacts
from dovetail.interfaces.plugin import Info
from dovetail.processes.handshake import make_lasting, read_exactly
from dovetail_plugins.stored_values import ValueClient, ValueIndex, ValueStore

EXTRA = "--kv-transfer-config.kv_connector_extra_config"
LEFT_ALONE_S = 2.0
"""How long a server that could not be reached is not asked again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LMCacheOptions:
    """Where the server is."""

    remote_url: str = field(default="", metadata={"help": "lm://HOST:PORT of the server"})
    timeout_s: float = field(
        default=3.0, metadata={"help": "how long one answer is waited for", "unit": "s", "ge": 0.01}
    )


class LMCache(KVConnector):
    """A client of the server beside every rank, and one in the engine."""

    interface_version = 1
    info = Info(
        summary="an LMCache server that several engines share",
        source="https://docs.lmcache.ai",
        requires=("lmcache",),
    )
    capabilities = frozenset({"shared", "slow_look_up"})
    Options = LMCacheOptions

    @classmethod
    def unavailable_reason(cls) -> str | None:
        """Return how to get LMCache where it is not installed."""
        if super().unavailable_reason() is None:
            return None
        return "LMCache is not installed. Fix: run `pip install lmcache`."

    @classmethod
    def sample_options(cls, folder: str) -> dict[str, object]:
        """Return the address at which `lmcache_server` listens in LMCache's documentation."""
        del folder
        return {"remote_url": "lm://localhost:65432"}

    def index(self, facts: StoreFacts) -> ValueIndex:
        """Return the engine's side. Raises: ConfigError"""
        return ValueIndex(LMCacheClient(self.options), facts)

    def store(self, facts: StoreFacts) -> ValueStore:
        """Return a rank's side. Raises: ConfigError"""
        return ValueStore(LMCacheClient(self.options), facts)


def _address(url: str) -> tuple[str, int]:
    """Return host and port. Raises: ConfigError"""
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        port = None
    if parts.scheme != "lm" or not parts.hostname or not port:
        raise ConfigError(
            f'"{url}" is not the address of an LMCache server.' if url else "no server is named.",
            where=f"{EXTRA}.remote_url",
            fix="write lm://HOST:PORT.",
        )
    return parts.hostname, port


class LMCacheClient(ValueClient):
    """A connection for each thread; one that fails is opened anew after a while.

    The server removes nothing: what was removed here counts as not there until it is put again.
    """

    def __init__(self, options: LMCacheOptions) -> None:
        """Raises: ConfigError"""
        self._address = _address(options.remote_url)
        self._timeout_s = options.timeout_s
        self._own = threading.local()
        self._connections: set[socket.socket] = set()
        self._left_alone_until_s = 0.0
        self._removed: set[str] = set()

    def has(self, name: str) -> bool:
        """Return whether the value is there. Raises: OSError"""
        from lmcache.v1.protocol import Constants  # type: ignore[import-not-found]

        if name in self._removed:
            return False
        return bool(self._asked(Constants.CLIENT_EXIST, name)[0] == Constants.SERVER_SUCCESS)

    def get(self, name: str) -> Buffer | None:
        """Return a value. Raises: OSError"""
        from lmcache.v1.protocol import Constants

        if name in self._removed:
            return None
        code, value = self._asked(Constants.CLIENT_GET, name)
        return value if code == Constants.SERVER_SUCCESS else None

    def put(self, name: str, value: Buffer) -> None:
        """Put a value; the server does not answer. Raises: OSError. Mutates: self"""
        from lmcache.v1.protocol import Constants

        with self._connected() as connection:
            connection.sendall(_message(Constants.CLIENT_PUT, name, len(value)))
            connection.sendall(value)
        self._removed.discard(name)

    def remove(self, name: str) -> None:
        """Have the value count as not there. Mutates: self"""
        self._removed.add(name)

    def _asked(self, command: int, name: str) -> tuple[int, bytes]:
        """Return code and content of an answer. Raises: OSError"""
        from lmcache.v1.protocol import ServerMetaMessage

        with self._connected() as connection:
            connection.sendall(_message(command, name, 0))
            head = read_exactly(connection, ServerMetaMessage.packlength())
            answer = ServerMetaMessage.deserialize(head)
            return answer.code, read_exactly(connection, answer.length)

    @contextlib.contextmanager
    def _connected(self) -> Iterator[socket.socket]:
        """Give this thread's connection; what goes wrong with it ends it. Raises: OSError"""
        if self._connection() is None and time.monotonic() < self._left_alone_until_s:
            raise ConnectionError("the LMCache server has just not answered")
        try:
            yield self._connection() or self._opened()
        except OSError:
            self._end()
            raise
        except Exception as error:  # of LMCache's messages
            self._end()
            raise ConnectionError(f"the LMCache server's answer is not one: {error}") from error

    def _connection(self) -> socket.socket | None:
        return getattr(self._own, "connection", None)

    def _opened(self) -> socket.socket:
        made = socket.create_connection(self._address, timeout=self._timeout_s)
        make_lasting(made)
        made.settimeout(self._timeout_s)
        self._connections.add(made)
        self._own.connection = made
        return made

    def _end(self) -> None:
        """End this thread's connection, in which an answer may be half read. Mutates: self"""
        self._left_alone_until_s = time.monotonic() + LEFT_ALONE_S
        if (found := self._connection()) is not None:
            self._own.connection = None
            self._connections.discard(found)
            found.close()

    def close(self) -> None:
        """End all connections."""
        for connection in tuple(self._connections):
            connection.close()


def _message(command: int, name: str, length: int) -> bytes:
    """Return a request about the value of a name."""
    import torch
    from lmcache.utils import CacheEngineKey  # type: ignore[import-not-found]
    from lmcache.v1.memory_management import MemoryFormat  # type: ignore[import-not-found]
    from lmcache.v1.protocol import ClientMetaMessage

    digest = hashlib.sha256(name.encode()).digest()
    key = CacheEngineKey(
        model_name="dovetail",
        world_size=1,
        worker_id=0,
        chunk_hash=int.from_bytes(digest, "big"),
        dtype=torch.uint8,
    )
    shape = torch.Size((0, 0, 0, 0))
    message = ClientMetaMessage(command, key, length, MemoryFormat.BINARY, torch.uint8, shape)
    return bytes(message.serialize())

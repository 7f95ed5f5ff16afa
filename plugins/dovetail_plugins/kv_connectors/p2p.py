"""P2P: engines give each other blocks, from host memory to host memory.

The most recently used full blocks are stored in memory. This engine reads them back from there, and
others fetch them: on one machine over ZeroMQ and shared memory, between machines by TCP once both
have proved a secret. They travel in pieces, so that the engines may differ in block size and in
tensor-parallel size. Rank r of engine k listens on port kv_port + 16 k + r.
"""

from __future__ import annotations

import ipaddress
import logging
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dovetail.errors import ConfigError
from dovetail.interfaces.kv_connector import (
    BlockStore,
    Buffer,
    KVConnector,
    Parts,
    RanksFor,
    StoreFacts,
    StoreIndex,
)
from dovetail.interfaces.plugin import Info
from dovetail_plugins.kv_connectors._eviction import eviction_of
from dovetail_plugins.kv_connectors._peer_client import PeerEngine
from dovetail_plugins.kv_connectors._peer_memory import (
    Carrier,
    Landing,
    SharedMemory,
    landing_bytes,
    lay_into,
)
from dovetail_plugins.kv_connectors._peer_messages import (
    PeerAddress,
    PeerFacts,
    place_of,
    read_secret,
)
from dovetail_plugins.kv_connectors._peer_server import HostBlocks, PeerServer

__all__ = (
    "P2P",
    "Carrier",
    "Landing",
    "P2POptions",
    "SharedMemory",
    "landing_bytes",
    "lay_into",
)
"""With these a package makes a connector that differs in how blocks travel."""

log = logging.getLogger(__name__)

PORTS_PER_ENGINE = 16
MOST_PEERS_KEPT = 64
FLAG = "--kv-transfer-config"
EXTRA = f"{FLAG}.kv_connector_extra_config"
HOST, PORT = "remote_host", "remote_port"


@dataclass(frozen=True, slots=True, kw_only=True)
class P2POptions:
    """Where this engine listens, which engines it queries, and how much it stores."""

    kv_ip: str = field(default="127.0.0.1", metadata={"help": "address at which others reach it"})
    kv_port: int = field(
        default=14579, metadata={"help": "first port; also its name on this machine", "ge": 1}
    )
    kv_rank: int = field(
        default=0, metadata={"help": "which of kv_parallel_size engines it is", "ge": 0}
    )
    kv_parallel_size: int = field(
        default=1, metadata={"help": "engines at these ports, which all ask each other", "ge": 1}
    )
    peers: tuple[str, ...] = field(
        default=(), metadata={"help": "HOST:PORT of other engines that are asked for blocks"}
    )
    asks_any: bool = field(
        default=False,
        metadata={"help": "ask whatever engine a request names, not only those above"},
    )
    host_bytes: int = field(
        default=4 << 30, metadata={"help": "host memory for blocks", "unit": "bytes", "ge": 0}
    )
    eviction: str = field(
        default="lru", metadata={"help": "which blocks go when there is no room: lru, slru, ..."}
    )
    secret_file: str | None = field(
        default=None,
        metadata={"help": "file with a secret of 16 characters or more, the same for all engines"},
    )
    wait_s: float = field(
        default=5.0,
        metadata={"help": "how long blocks are waited for that a request names", "ge": 0.0},
    )

    def place(self, facts: StoreFacts, rank: int) -> PeerAddress:
        """Return where a rank of this engine listens."""
        number = self.kv_rank + facts.engine
        return PeerAddress(self.kv_ip, self.kv_port + PORTS_PER_ENGINE * number + rank)

    def named_peers(self) -> list[PeerAddress]:
        """Return where the configured peers listen. Raises: ConfigError"""
        try:
            return [place_of(peer) for peer in self.peers]
        except ValueError as error:
            raise ConfigError(f"{error}.", where=f"{EXTRA}.peers") from error

    def others(self, facts: StoreFacts) -> list[PeerAddress]:
        """Return where the other engines listen. Raises: ConfigError"""
        places = self.named_peers()
        own = self.place(facts, 0)
        for number in range(self.kv_parallel_size):
            places.append(PeerAddress(self.kv_ip, self.kv_port + PORTS_PER_ENGINE * number))
        return [place for place in dict.fromkeys(places) if place != own]


class P2P(KVConnector):
    """Blocks in every rank's memory, and peers."""

    info = Info(summary="engine to engine: shared memory on one machine, TCP between machines")
    capabilities = frozenset({"has_ports", "peers", "pieces", "slow_look_up"})
    Options = P2POptions

    def __init__(self, options: P2POptions) -> None:
        """Raises: ConfigError for an address, a secret or peers that no engine could use"""
        super().__init__(options)
        _check_address(options.kv_ip, read_secret(options.secret_file, f"{EXTRA}.secret_file"))
        options.named_peers()

    @classmethod
    def sample_options(cls, folder: str) -> dict[str, object]:
        """Return a small memory at ports that no other try has."""
        port = 20_000 + zlib.crc32(folder.encode()) % 1000 * 40
        return {"host_bytes": 1 << 20, "kv_port": port, "kv_parallel_size": 2}

    def index(self, facts: StoreFacts) -> P2PIndex:
        """Return the engine's side. Raises: ConfigError"""
        return P2PIndex(self.options, facts)

    def store(self, facts: StoreFacts) -> P2PStore:
        """Return a rank's side, which others can query from now on. Raises: ConfigError"""
        return P2PStore(self.options, facts, self.carrier(facts))

    def carrier(self, facts: StoreFacts) -> Carrier:
        """Return how blocks get into the memory of a rank, and out of it. Raises: ConfigError"""
        del facts
        return SharedMemory()


class _Peers:
    """The engines that one thread queries, by place; the most recent ones stay connected."""

    def __init__(self, options: P2POptions, own: PeerFacts, carrier: Carrier | None) -> None:
        self._own = own
        self._carrier = carrier
        self._secret = read_secret(options.secret_file, f"{EXTRA}.secret_file")
        self._engines: dict[PeerAddress, PeerEngine] = {}

    def at(self, place: PeerAddress) -> PeerEngine:
        """Return an engine, whether it is there or not. Mutates: self"""
        engine = self._engines.pop(place, None)
        if engine is None:
            engine = PeerEngine(place, self._own, self._secret, self._carrier)
        self._engines[place] = engine
        if len(self._engines) > MOST_PEERS_KEPT:
            self._engines.pop(next(iter(self._engines))).close()
        return engine

    def close(self) -> None:
        """Disconnect from all of them."""
        for engine in self._engines.values():
            engine.close()


def _own_facts(facts: StoreFacts) -> PeerFacts:
    return PeerFacts(
        identity=facts.identity,
        unit_tokens=facts.unit_tokens,
        rank=facts.rank,
        num_ranks=facts.world_size,
        block_bytes=facts.block_bytes,
        engine_id=facts.engine_id,
    )


def _limit(options: P2POptions, facts: StoreFacts) -> int:
    return options.host_bytes // (facts.block_bytes * facts.world_size)


class P2PIndex(StoreIndex):
    """The keys on the ranks' shelves, and another engine's for the request looked up last."""

    def __init__(self, options: P2POptions, facts: StoreFacts) -> None:
        self._options = options
        self._facts = facts
        self._kept = eviction_of(options.eviction, _limit(options, facts))
        self._others = options.others(facts)
        self._peers = _Peers(options, _own_facts(facts), carrier=None)
        self._there: frozenset[bytes] = frozenset()
        if facts.world_size > PORTS_PER_ENGINE:
            raise ConfigError(
                f"{facts.world_size} ranks need more than {PORTS_PER_ENGINE} ports.",
                where=f"{FLAG}.kv_port",
                fix="use fewer ranks, or another connector.",
            )

    def has(self, key: bytes) -> bool:
        """Return whether a block is on the shelves, or with the engine looked at last."""
        return self._kept.has(key) or key in self._there

    def keep(self, key: bytes) -> bool:
        """Return whether a block is a new one. Mutates: self"""
        is_new = not self._kept.has(key)
        self._kept.add(key)
        return is_new

    def look(self, keys: Sequence[bytes], params: Mapping[str, Any]) -> str:
        """Query other engines for missing blocks: the one that the params name, else all known
        ones; return the one with the most. Mutates: self"""
        self._there = frozenset()
        missing = [key for key in keys if not self._kept.has(key)]
        named = self._named(params)
        places = self._others if named is None else [named]
        best, wait_s = "", 0.0 if named is None else self._options.wait_s
        for place in places if missing else ():
            engine = self._peers.at(place)
            found = frozenset() if engine.is_left_alone else engine.which(missing, wait_s)
            if len(found) > len(self._there):
                self._there, best = found, place.name
        return best

    def _named(self, params: Mapping[str, Any]) -> PeerAddress | None:
        """Return the engine that a request names, None if it names none."""
        host, port = params.get(HOST), params.get(PORT)
        if host is None and port is None:
            return None
        try:
            place = place_of(f"{host}:{port}")
        except ValueError as error:
            log.warning("kv_transfer_params: %s", error)
            return None
        if self._options.asks_any or place in self._others:
            return place
        log.warning(
            "kv_transfer_params: %s is none of the peers, and is not asked; name it in %s.peers, "
            "or set %s.asks_any where every client is trusted.", place.name, EXTRA, EXTRA,
        )  # fmt: skip
        return None

    def ticket(self, num_tokens: int) -> dict[str, Any]:
        """Return where this engine listens, in the format of vLLM's connectors."""
        unit = self._facts.unit_tokens
        place = self._options.place(self._facts, 0)
        return {
            "remote_engine_id": self._facts.engine_id,
            "remote_block_ids": list(range(num_tokens // unit)) if unit else [],
            HOST: place.host,
            PORT: place.port,
            "tp_size": self._facts.world_size,
        }

    def used(self, keys: Sequence[bytes]) -> None:
        """Put blocks that are here last among those to go. Mutates: self"""
        for key in keys:
            if self._kept.has(key):
                self._kept.add(key)

    def lost(self, keys: Sequence[bytes]) -> None:
        """Forget blocks. Mutates: self"""
        self._there = frozenset()
        for key in keys:
            self._kept.discard(key)

    def close(self) -> None:
        """Let go of the peers."""
        self._peers.close()


class P2PStore(BlockStore):
    """A rank's blocks in host memory, its server, and the peers that it reads from."""

    def __init__(self, options: P2POptions, facts: StoreFacts, carrier: Carrier) -> None:
        """Raises: ConfigError"""
        own, secret_place = _own_facts(facts), f"{EXTRA}.secret_file"
        secret = read_secret(options.secret_file, secret_place)
        _check_address(options.kv_ip, secret)
        self._host_blocks = HostBlocks(eviction_of(options.eviction, _limit(options, facts)))
        self._carrier = carrier
        self._peers = _Peers(options, own, carrier)
        place = options.place(facts, facts.rank)
        self._server = PeerServer(self._host_blocks, own, place, secret, carrier)

    def read(self, key: bytes) -> Buffer | None:
        """Return a block in host memory."""
        return self._host_blocks.get(key)

    def gather(
        self, keys: Sequence[bytes], source: str, ranks_for: RanksFor
    ) -> Iterator[tuple[bytes, Parts]]:
        """Yield blocks in host memory, then missing ones from engine `source`. Raises: OSError"""
        missing = []
        for key, parts in super().gather(keys, source, ranks_for):
            if parts is None and source:
                missing.append(key)
            else:
                yield key, parts
        if missing:
            yield from self._peers.at(place_of(source)).fetch(missing, ranks_for)

    def write(self, key: bytes, block: Buffer) -> None:
        """Keep a block."""
        self._host_blocks.put(key, bytes(block))

    def drop(self, key: bytes) -> None:
        """Forget a block."""
        self._host_blocks.drop(key)

    def close(self) -> None:
        """Stop serving blocks. May be called twice."""
        self._server.close()
        self._peers.close()
        self._carrier.close()
        self._host_blocks.clear()


def _check_address(address: str, secret: bytes | None) -> None:
    """Raise ConfigError for an address at which others cannot be let in."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        parsed = None  # a name
    if parsed is not None and parsed.is_unspecified:
        raise ConfigError(
            f"{address} is not an address that other engines could ask.",
            where=f"{FLAG}.kv_ip",
            fix="name one of this machine's addresses.",
        )
    is_here = address == "localhost" or (parsed is not None and parsed.is_loopback)
    if secret is None and not is_here:
        raise ConfigError(
            "engines of other machines prove a secret before they get blocks, and none is given.",
            where=f"{EXTRA}.secret_file",
            fix="name a file with one, the same for all engines; `openssl rand -hex 32` makes one.",
        )

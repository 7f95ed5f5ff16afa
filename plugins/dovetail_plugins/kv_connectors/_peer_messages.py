"""Messages between engines that exchange KV blocks, and their meeting point on one machine.

Messages are msgpack, one answer to each question. On one machine they go over ZeroMQ, between
machines over TCP, once both sides have proved a secret (`dovetail.processes.handshake`). Blocks
bypass them if there is a carrier (`_peer_memory`).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

import msgspec

from dovetail.errors import ConfigError

MAX_PATH_BYTES = 100
"""Paths of Unix sockets have a limit of 107 bytes."""
MIN_SECRET_CHARS = 16


class GetFacts(msgspec.Struct, frozen=True, tag="get_facts"):
    """Asks for the peer's facts."""


class FindBlocks(msgspec.Struct, frozen=True, kw_only=True, tag="find_blocks"):
    """Asks which of these blocks are there, and waits up to `wait_s` for pending ones."""

    identity: str
    keys: tuple[bytes, ...]
    wait_s: float = 0.0


class Fetch(msgspec.Struct, frozen=True, kw_only=True, tag="fetch"):
    """Requests blocks: one after the other in the landing `memory`, or in the answer."""

    identity: str
    keys: tuple[bytes, ...]
    memory: str = ""


class PeerFacts(msgspec.Struct, frozen=True, kw_only=True, tag="facts"):
    """A peer's facts: rank `rank` of the `num_ranks` of an engine, whose blocks take `block_bytes`
    or less."""

    identity: str
    unit_tokens: int
    rank: int
    num_ranks: int
    block_bytes: int
    engine_id: str = ""


class Present(msgspec.Struct, frozen=True, tag="present"):
    """Which blocks are present: a byte for each requested one, 1 or 0."""

    flags: bytes


class BlockReply(msgspec.Struct, frozen=True, tag="blocks"):
    """The sizes of blocks, -1 for one that is missing or does not fit, and the blocks themselves if
    they are not in the landing."""

    sizes: tuple[int, ...]
    data: tuple[bytes, ...] = ()


Question = GetFacts | FindBlocks | Fetch
Reply = PeerFacts | Present | BlockReply

QUESTIONS = msgspec.msgpack.Decoder(Question)
REPLIES = msgspec.msgpack.Decoder(Reply)


@dataclass(frozen=True, slots=True)
class PeerAddress:
    """Where a rank listens: a host name or address, and a port that also names its socket on this
    machine."""

    host: str
    port: int

    @property
    def name(self) -> str:
        """Return it as people write it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def socket_path(self) -> Path:
        """Return the socket's place, whether it is there or not."""
        return local_folder() / f"{self.port}.socket"

    @property
    def lock_path(self) -> Path:
        """Return the file that is locked while a process serves the socket."""
        return local_folder() / f"{self.port}.lock"


def place_of(text: str) -> PeerAddress:
    """Return the place that HOST:PORT names. Raises: ValueError"""
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise ValueError(f"{text!r} is not HOST:PORT")
    return PeerAddress(host.strip("[]"), int(port))


def local_folder() -> Path:
    """Return the folder of this user's sockets; it need not exist."""
    return Path(tempfile.gettempdir()) / f"dovetail-kv-{os.getuid()}"


def make_local_folder() -> None:
    """Make the folder of sockets, accessible only to this user. Raises: ConfigError"""
    folder = local_folder()
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError as error:
        raise ConfigError(f"the folder {folder} cannot be made: {error}.") from error
    if status.st_uid != os.getuid() or status.st_mode & 0o077 or folder.is_symlink():
        raise ConfigError(
            f"the folder {folder} is not this user's alone.", fix="remove it, or set TMPDIR."
        )
    if len(os.fsencode(folder)) > MAX_PATH_BYTES - 20:
        raise ConfigError(f"the path {folder} is too long for a socket.", fix="set TMPDIR.")


class Lock:
    """A file that this process has locked until it ends, however it ends."""

    def __init__(self, path: Path) -> None:
        """Raises: OSError if another process has it"""
        self._file = path.open("w")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise

    def close(self) -> None:
        """Let go of it. May be called twice."""
        self._file.close()


def is_served(place: PeerAddress) -> bool:
    """Return whether a process serves a place's socket on this machine."""
    try:
        lock = Lock(place.lock_path)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    lock.close()
    return False


def read_secret(path: str | None, place: str) -> bytes | None:
    """Return the secret in a file, None if no file is named. Raises: ConfigError"""
    if path is None:
        return None
    try:
        secret = Path(path).expanduser().read_bytes().strip()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.", where=place) from error
    if len(secret) < MIN_SECRET_CHARS:
        raise ConfigError(
            f"the secret in {path} has fewer than {MIN_SECRET_CHARS} characters.",
            where=place,
            fix="`openssl rand -hex 32` makes a good one.",
        )
    return secret


def remove_file(path: Path) -> None:
    """Remove a file, if it is there."""
    with contextlib.suppress(OSError):
        path.unlink()

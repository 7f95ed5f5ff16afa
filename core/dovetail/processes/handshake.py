"""Handshake: mutual proof over TCP, between processes on any machines, of a shared secret.

The listener sends a nonce; the connecting peer answers with its nonce and an HMAC over both; the
listener replies with its HMAC. The secret is never sent, and nothing else of an
unverified peer is read. Later messages (`process.framed`) are not encrypted.
"""

from __future__ import annotations

import contextlib
import hmac
import secrets
import socket
from typing import Any, TypeVar

import msgspec

from dovetail.processes.process import LENGTH, framed

Message = TypeVar("Message")

NONCE_BYTES = PROOF_BYTES = 32
HELLO_LIMIT_S = 10.0
"""Time limit for a peer to authenticate."""
KEEP_ALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 11_000}
"""A machine that disappears silently is detected after 5 + 2 * 3 seconds, even while data is on its
way there."""


class WrongSecret(EOFError):
    """The other side has another secret, or is not dovetail."""


def challenge(connection: socket.socket, secret: bytes) -> None:
    """Verify the peer's proof, then send the listener's. Raises: OSError, EOFError, WrongSecret"""
    nonce = secrets.token_bytes(NONCE_BYTES)
    connection.sendall(nonce)
    answer = read_exactly(connection, NONCE_BYTES + PROOF_BYTES)
    nonces = nonce + answer[:NONCE_BYTES]
    if not hmac.compare_digest(answer[NONCE_BYTES:], _proof(secret, b"peer", nonces)):
        with contextlib.suppress(OSError):
            connection.sendall(bytes(PROOF_BYTES))
        raise WrongSecret("the peer has another secret")
    connection.sendall(_proof(secret, b"listener", nonces))


def respond(connection: socket.socket, secret: bytes) -> None:
    """Send the peer's proof, then verify the listener's. Raises: OSError, EOFError, WrongSecret"""
    nonce = secrets.token_bytes(NONCE_BYTES)
    nonces = read_exactly(connection, NONCE_BYTES) + nonce
    connection.sendall(nonce + _proof(secret, b"peer", nonces))
    proof = read_exactly(connection, PROOF_BYTES)
    if not hmac.compare_digest(proof, _proof(secret, b"listener", nonces)):
        raise WrongSecret("the listener has another secret")


def _proof(secret: bytes, who: bytes, nonces: bytes) -> bytes:
    return hmac.digest(secret, who + nonces, "sha256")


def send_message(connection: socket.socket, message: Any) -> None:
    """Send one message. Raises: OSError"""
    connection.sendall(framed(msgspec.msgpack.encode(message)))


def receive_message(connection: socket.socket, message_type: type[Message]) -> Message:
    """Return one message, reading no bytes past it. Raises: OSError, EOFError, MsgspecError"""
    (length,) = LENGTH.unpack(read_exactly(connection, LENGTH.size))
    return msgspec.msgpack.decode(read_exactly(connection, length), type=message_type)


def read_exactly(connection: socket.socket, size: int) -> bytes:
    """Return exactly `size` bytes. Raises: OSError, EOFError when the connection ends first"""
    data = bytearray()
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise EOFError("the connection ended")
        data += part
    return bytes(data)


def make_lasting(connection: socket.socket) -> None:
    """Make calls block, send small messages immediately, and detect dead machines by keep-alive."""
    connection.settimeout(None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEP_ALIVE.items():
        with contextlib.suppress(AttributeError, OSError):  # other systems name them otherwise
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

"""Sealed text: what a client sends back unread, such as reasoning, with proof that it is ours.

A seal is the text, compressed, with a keyed hash (HMAC-SHA256) over it and its purpose. It is not
secret: it says that this server wrote the text and that nobody has changed it. The key is a file of
the user, so that other processes and later servers accept it too. Servers of several machines need
the same file.
"""

from __future__ import annotations

import base64
import hmac
import logging
import os
import secrets
import tempfile
import zlib
from functools import cache
from pathlib import Path

from dovetail.processes.own_folder import own_folder
from dovetail_plugins.state_folder import state_folder

log = logging.getLogger(__name__)

KEY_FILE = "signing_key"
KEY_BYTES = 32
HASH = "sha256"
HASH_BYTES = 32
MAX_TEXT_BYTES = 16 << 20
"""A longer text is not unpacked: a small seal may expand to a huge one."""


class NotOurs(ValueError):
    """A seal that this server's key did not make, or that was changed since."""


def sealed(text: str, purpose: str) -> str:
    """Return a text as a seal of ASCII characters. `purpose` says what it is, for example
    "reasoning": it opens for the same purpose only."""
    packed = zlib.compress(text.encode())
    return base64.urlsafe_b64encode(_hash(packed, purpose) + packed).decode()


def opened(seal: str, purpose: str) -> str:
    """Return the text of a seal. Raises: NotOurs"""
    try:
        data = base64.b64decode(seal.encode("ascii"), altchars=b"-_", validate=True)
    except ValueError as error:
        raise NotOurs("it is not base64") from error
    found, packed = data[:HASH_BYTES], data[HASH_BYTES:]
    if not hmac.compare_digest(found, _hash(packed, purpose)):
        raise NotOurs("this server did not make it, or it was changed")
    unpacking = zlib.decompressobj()
    text = unpacking.decompress(packed, MAX_TEXT_BYTES)
    if unpacking.unconsumed_tail:
        raise NotOurs("it is too long")
    return text.decode()


def signature(text: str, purpose: str) -> str:
    """Return a signature of a text that is sent to the client unsealed."""
    return base64.urlsafe_b64encode(_hash(text.encode(errors="replace"), purpose)).decode()


def is_signature(given: str, text: str, purpose: str) -> bool:
    """Return whether a signature is this server's, of this text."""
    found = signature(text, purpose).encode()
    return hmac.compare_digest(given.encode(errors="replace"), found)


def _hash(data: bytes, purpose: str) -> bytes:
    return hmac.digest(_key(), purpose.encode() + b"\0" + data, HASH)


@cache
def _key() -> bytes:
    """Return the user's key, made once. If it cannot be kept, it is this process's alone."""
    path = state_folder() / KEY_FILE
    try:
        return _read(path) or _written(path)
    except OSError as error:
        log.warning("what clients send back sealed is refused after a restart: %s", error)
        return secrets.token_bytes(KEY_BYTES)


def _read(path: Path) -> bytes | None:
    try:
        found = path.read_bytes()
    except FileNotFoundError:
        return None
    if len(found) != KEY_BYTES:
        raise OSError(f"{path} is not a key of {KEY_BYTES} bytes")
    return found


def _written(path: Path) -> bytes:
    """Return a new key, or the one that another process wrote first."""
    with tempfile.NamedTemporaryFile(dir=own_folder(path.parent)) as file:
        key = secrets.token_bytes(KEY_BYTES)
        file.write(key)
        file.flush()
        try:
            os.link(file.name, path)
        except FileExistsError:
            return _read(path) or key
    return key

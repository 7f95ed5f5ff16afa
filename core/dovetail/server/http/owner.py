"""Owners: what is stored for clients belongs to the API key that asked for it.

A key is known by its hash, so that no store holds the key. Work that this process does later for a
client, such as the lines of a batch, has no key to show: its scope names the owner (`as_owner`),
which no request from outside can.
"""

from __future__ import annotations

import hashlib

from starlette.requests import HTTPConnection
from starlette.types import Scope

from dovetail.server.http.middleware import key_of

_STATE_KEY = "owner"


def owner_of_key(key: str) -> str:
    """Return the owner that an API key stands for."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


def owner_of(request: HTTPConnection) -> str:
    """Return the owner of what a request makes or asks for."""
    named: str | None = request.scope.get("state", {}).get(_STATE_KEY)
    return owner_of_key(key_of(request.headers)) if named is None else named


def as_owner(scope: Scope, owner: str) -> None:
    """Let a request of this process itself count as an owner's. Mutates: scope"""
    scope.setdefault("state", {})[_STATE_KEY] = owner

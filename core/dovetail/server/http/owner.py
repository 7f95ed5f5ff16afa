"""Owners: what is stored for a client belongs to the API key of its request.

An owner is the hash of a key, so that no store contains keys, or the name that the gate gives to a
request. Work that this process does later for a client, such as the lines of a batch, has no key:
its scope names the owner (`as_owner`), which no request from outside can do.
"""

from __future__ import annotations

import hashlib

from starlette.requests import HTTPConnection
from starlette.types import Scope

from dovetail.server.http.middleware import key_of

FILE_OWNER = "name:"
"""What an owner begins with that has a name."""
_STATE_KEY = "owner"


def owner_of_key(key: str) -> str:
    """Return the owner that an API key identifies."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


def owner_of(request: HTTPConnection) -> str:
    """Return the owner of what a request creates or reads."""
    named: str | None = request.scope.get("state", {}).get(_STATE_KEY)
    return owner_of_key(key_of(request.headers)) if named is None else named


def named_owner(owner: str) -> str | None:
    """Return the name in an owner, None if it is the hash of a key."""
    return owner.removeprefix(FILE_OWNER) if owner.startswith(FILE_OWNER) else None


def as_owner(scope: Scope, owner: str) -> None:
    """Make a request count as an owner's. Mutates: scope"""
    scope.setdefault("state", {})[_STATE_KEY] = owner

"""Door: what the gate of API keys does with each request."""

from __future__ import annotations

from fnmatch import fnmatchcase

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dovetail.errors import RequestError
from dovetail.interfaces.gate import GateFacts
from dovetail.observability.caller import enter
from dovetail.server.endpoint import FILE_OWNER, as_owner, named_owner
from dovetail.server.http.errors import Problem, problem, problem_of
from dovetail.server.http.middleware import STARTS, key_of
from dovetail_plugins.gates._families import Families
from dovetail_plugins.gates._keys_file import NAME, PREFIX, Key, KeysFile, Limits, hash_of
from dovetail_plugins.gates._limits import Meter
from dovetail_plugins.gates._visit import KeyVisit, forbidden

ADMIN_FAMILIES = frozenset({"adapters", "admin", "settings"})
"""Families of which a key of the file needs `admin`."""
MAX_METERS = 4096
"""Owners whose idle meters stay; more are dropped."""
_SHORT = 12


class Door:
    """The keys, and the meters of their owners. Raises: ConfigError for a bad keys file"""

    def __init__(self, facts: GateFacts) -> None:
        frontend = facts.frontend
        self._facts = facts
        self._plain = {digest: _plain_key(digest) for digest in map(hash_of, frontend.api_key)}
        self._file = KeysFile(frontend.api_keys_file) if frontend.api_keys_file else None
        self._header = (frontend.owner_header or "").lower()
        self._processes = frontend.api_server_count
        # A proxy on a Unix socket sends requests of its own, without an owner.
        is_inner = bool(self._header) and frontend.uds is not None
        self._needs_key = bool(self._plain) or (self._file is not None and not is_inner)
        self._meters: dict[tuple[str, str], Meter] = {}
        self._families: Families | None = None

    def knows(self, owner: str) -> bool:
        """Return whether a named owner is still in the file; others are known by their keys."""
        name = named_owner(owner)
        return name is None or self._file is None or self._file.by_name(name) is not None

    async def enter(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request in, or answer it with an error."""
        if scope["type"] == "websocket" and not self._is_allowed_origin(Headers(scope=scope)):
            await _refuse(_FOREIGN_PAGE, scope, receive, send)
            return
        if scope["type"] == "lifespan" or not (self._needs_key or self._header or self._file):
            await app(scope, receive, send)
            return
        key = self._key_of(scope)
        if key is None and (not self._needs_key or self._facts.is_open(scope)):
            await app(scope, receive, send)
        elif key is None:
            await _refuse(_UNAUTHORIZED, scope, receive, send)
        else:
            await self._visit(key, app, scope, receive, send)

    def _is_allowed_origin(self, headers: Headers) -> bool:
        """Return whether a WebSocket may be opened from its page. CORS, by which browsers protect
        what they request, does not hold for WebSockets."""
        origin, allowed = headers.get("origin"), self._facts.frontend.allowed_origins
        if origin is None or "*" in allowed or origin in allowed:
            return True
        return origin.partition("://")[2].lower() == headers.get("host", "").lower()

    def _key_of(self, scope: Scope) -> Key | None:
        """Return whom a request is from; None if it brings no valid key. Mutates: scope"""
        headers = Headers(scope=scope)
        stored = named_owner(scope.get("state", {}).get("owner", ""))
        named = stored or (headers.get(self._header, "") if self._header else "")
        if named:
            if not NAME.fullmatch(named) and not stored:
                return None
            key = self._file.by_name(named) if self._file is not None else None
            found: Key | None = key or Key(name=named)
        else:
            digest = hash_of(key_of(headers))
            if digest in self._plain:
                return self._plain[digest]
            found = self._file.by_hash(digest) if self._file is not None else None
        if found is not None:
            as_owner(scope, FILE_OWNER + found.name)
        return found

    async def _visit(
        self, key: Key, app: ASGIApp, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Answer a key's request within its scopes and limits. Mutates: meters"""
        own = self._meter(key.name, "")
        own.limits = key.limits
        by_model = [(pattern, self._meter(key.name, pattern)) for pattern in key.model_limits]
        for pattern, meter in by_model:
            meter.limits = key.model_limits[pattern]
        visit = KeyVisit(key, own, by_model, self._facts.models)
        is_counted = scope["type"] == "websocket" or scope.get("method") == "POST"
        send = _with_headers(send, visit)
        try:
            self._check_family(key, scope)
            if is_counted:
                own.check_open()
        except RequestError as error:
            await _refuse(problem_of(error), scope, receive, send)
            return
        enter(key.name, key.weight, visit)
        own.num_open += is_counted
        try:
            await app(scope, receive, send)
        finally:
            own.num_open -= is_counted

    def _meter(self, name: str, pattern: str) -> Meter:
        found = self._meters.get((name, pattern))
        if found is None:
            if len(self._meters) >= MAX_METERS:
                self._meters = {n: one for n, one in self._meters.items() if not one.is_idle}
            what = f"{name} with {pattern}" if pattern else name
            found = self._meters[name, pattern] = Meter(what, Limits(), self._processes)
        return found

    def _check_family(self, key: Key, scope: Scope) -> None:
        """Raise RequestError if a key does not allow the endpoint of a request."""
        if key.admin and not key.families:
            return
        if self._families is None:
            self._families = Families()
        family = self._families.of(scope)
        if family in ADMIN_FAMILIES and not key.admin:
            raise forbidden(f"the key {key.name} may not use {scope['path'][:256]}.", "admin_only")
        if key.families and family and not any(fnmatchcase(family, one) for one in key.families):
            what = f'the key {key.name} may not use the endpoints of "{family}".'
            raise forbidden(what, "family_not_allowed")


def _plain_key(digest: str) -> Key:
    """Return what a key of --api-key with this hash allows: everything."""
    short = digest.removeprefix(PREFIX)[:_SHORT]
    return Key(name=f"key-{short}", admin=True, min_priority=None)


def _with_headers(send: Send, visit: KeyVisit) -> Send:
    """Return a send that adds the headers of limits to an answer."""

    async def add(message: Message) -> None:
        if message["type"] in STARTS:
            headers = list(message.get("headers", ()))
            there = {name for name, _ in headers}  # a model's server behind a gateway knows more
            headers += [one for one in visit.headers() if one[0] not in there]
            message = {**message, "headers": headers}
        await send(message)

    return add


async def _refuse(found: Problem, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with an error; a WebSocket is closed where the server cannot answer it."""
    if scope["type"] == "http" or "websocket.http.response" in scope.get("extensions", {}):
        await found.response(scope)(scope, receive, send)
    else:
        await send({"type": "websocket.close", "code": 1008})


_FOREIGN_PAGE = problem(
    403,
    "a web page of another origin may not open a WebSocket here.",
    kind="permission_error",
    code="origin_not_allowed",
)
_UNAUTHORIZED = problem(
    401,
    "a valid API key is needed: send the header Authorization: Bearer KEY, or x-api-key: KEY.",
    code="invalid_api_key",
    headers={"WWW-Authenticate": "Bearer"},
)

"""LocalOnly: a server without a key on a loopback address answers only this machine's programs.

A foreign web page can send requests to 127.0.0.1 from a visitor's browser: as cross-origin calls,
or under a host name that it makes resolve to 127.0.0.1 (DNS rebinding). The browser reveals this in
Origin and Host. An IP address in Host is safe: rebinding needs a name.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from dovetail.server.http.addresses import ANY, is_address, is_loopback
from dovetail.server.http.errors import Problem, problem

APP_SCHEMES = frozenset({"app", "file", "tauri", "vscode-webview", "vscode-file"})
"""URL schemes of programs that show their own pages."""


class LocalOnly:
    """Refuses requests from foreign web pages. `hosts` and `origins` are allowed in addition."""

    def __init__(self, app: ASGIApp, *, hosts: Sequence[str], origins: Sequence[str]) -> None:
        self._app = app
        self._hosts = {host.lower() for host in (*hosts, socket.gethostname())}
        self._origins = frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        found = self._refusal(Headers(scope=scope)) if scope["type"] != "lifespan" else None
        if found is None:
            await self._app(scope, receive, send)
        else:
            await found.response(scope)(scope, receive, send)

    def _refusal(self, headers: Headers) -> Problem | None:
        host = headers.get("host", "")
        if not self._is_own(_host_of(f"//{host}")):
            return _refused(
                f'the header Host names "{host[:256]}"',
                "call it by its address, or start it with --allowed-hosts naming this host.",
                "host_not_allowed",
            )
        origin = headers.get("origin")
        if origin is not None and not self._is_allowed(origin):
            return _refused(
                f'a web page of "{origin[:256]}" called',
                "start it with --allowed-origins naming this origin, or with --api-key.",
                "origin_not_allowed",
            )
        return None

    def _is_own(self, name: str | None) -> bool:
        """Return whether a host is an address or a name of this machine. An empty one counts."""
        if name is None:
            return False
        return (
            not name
            or name in self._hosts
            or name == "localhost"
            or name.endswith(".localhost")
            or is_address(name)
        )

    def _is_allowed(self, origin: str) -> bool:
        if ANY in self._origins or origin in self._origins:
            return True
        scheme = origin.partition("://")[0]
        if scheme in APP_SCHEMES:
            return True
        name = _host_of(origin)
        if not name:
            return False  # "null", sent by pages that hide their origin
        is_machine = name == "localhost" or name.endswith(".localhost") or name in self._hosts
        return is_machine or is_loopback(name)


def _host_of(url: str) -> str | None:
    """Return a URL's host in lower case, without port and brackets; None if the URL is invalid."""
    try:
        parts = urlsplit(url)
        return (parts.hostname or "") if parts.port is None or parts.port >= 0 else None
    except ValueError:
        return None


def _refused(what: str, fix: str, code: str) -> Problem:
    return problem(
        403,
        f"this server answers only programs of its own machine, because it has no key: {what}. "
        f"Fix: {fix}",
        kind="permission_error",
        code=code,
    )

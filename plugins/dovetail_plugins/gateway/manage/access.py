"""Access: which requests may change a server's models.

By default only programs of this machine may. With --admin-api-key its keys are needed, and users'
keys are not enough. Without any key, a web page may only if it is one of this server's own, of a
program on this machine, or of an origin that --allowed-origins names: "*" is not enough.
"""

from __future__ import annotations

import hashlib
import hmac
import socket
from urllib.parse import urlsplit

from starlette.datastructures import Headers

from dovetail.config.sections.frontend import FrontendConfig
from dovetail.config.sections.gateway import GatewayConfig
from dovetail.errors import ConfigError, RequestError
from dovetail.observability.caller import VISIT
from dovetail.server.http.addresses import ANY, DEFAULT_HOST, is_address, is_loopback
from dovetail.server.http.local_only import APP_SCHEMES
from dovetail.server.http.middleware import key_of

ADMIN_FLAG = "--admin-api-key"
_CROSS_SITE = ("cross-site", "same-site")


class Access:
    """What a server's flags allow. Raises: ConfigError for an empty key"""

    def __init__(self, frontend: FrontendConfig, gateway: GatewayConfig) -> None:
        if not all(key.strip() for key in gateway.admin_api_key):
            raise ConfigError("a key is empty.", where=ADMIN_FLAG, fix="leave it out, or name one.")
        self.is_on = allows(frontend, gateway)
        self.has_own_keys = bool(gateway.admin_api_key)
        self._has_keys = self.has_own_keys or frontend.has_keys
        self._digests = [_digest(key) for key in gateway.admin_api_key]
        self._hosts = {*map(str.lower, frontend.allowed_hosts), socket.gethostname().lower()}
        self._origins = frozenset(frontend.allowed_origins) - {ANY}

    def check(self, headers: Headers) -> None:
        """Raise RequestError unless a request with these headers may change models. The users' keys
        were checked before, unless management has its own keys."""
        if not self.is_on:
            raise _refused(
                "this server's models are not managed over HTTP.",
                "start it with --manage-models.",
                "models_not_managed",
            )
        if not self.has_own_keys and (visit := VISIT.get()) is not None:
            visit.check_admin()
        if self.has_own_keys and not self._has_key(headers):
            raise RequestError(
                "a key of --admin-api-key is needed to manage models.",
                fix="send the header Authorization: Bearer KEY.",
                code="invalid_api_key",
                status=401,
            )
        if not self._has_keys and self._is_foreign(headers):
            raise _refused(
                "a web page of another site may not manage this server's models.",
                f"start it with --allowed-origins naming the page's origin, or with {ADMIN_FLAG}.",
                "origin_not_allowed",
            )

    def _has_key(self, headers: Headers) -> bool:
        digest = _digest(key_of(headers))
        # Every key is compared, so that the timing does not reveal which one is close.
        return any([hmac.compare_digest(digest, known) for known in self._digests])

    def _is_foreign(self, headers: Headers) -> bool:
        """Return whether a browser sends the request for a page of another site."""
        origin = headers.get("origin")
        if origin is None:
            return headers.get("sec-fetch-site") in _CROSS_SITE
        scheme, _, netloc = origin.partition("://")
        if origin in self._origins or scheme in APP_SCHEMES:
            return False
        host = _host_of(origin)
        if is_loopback(host) or host.endswith(".localhost"):
            return False
        # The name alone proves nothing: a foreign page can make its own name lead here.
        is_known = is_address(host) or host in self._hosts
        return not (is_known and netloc.lower() == headers.get("host", "").lower())


def allows(frontend: FrontendConfig, gateway: GatewayConfig) -> bool:
    """Return whether clients may change models at all: as the flag says, else only on this
    machine."""
    if gateway.manage_models is not None:
        return gateway.manage_models
    if frontend.uds is not None:
        return True
    return ANY not in frontend.allowed_hosts and is_loopback(frontend.host or DEFAULT_HOST)


def _host_of(origin: str) -> str:
    """Return an origin's host; empty for "null" and for what is no URL."""
    try:
        return urlsplit(origin).hostname or ""
    except ValueError:
        return ""


def _refused(what: str, fix: str, code: str) -> RequestError:
    error = RequestError(what, fix=fix, code=code, status=403)
    error.kind = "permission_error"
    return error


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()

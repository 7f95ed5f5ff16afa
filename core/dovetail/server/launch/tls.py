"""TLS: the server's SSLContext from the flags, checked at start and reloaded when files change.

A `Refreshed` context makes every new connection with the newest valid context. A renewed
certificate or a shorter list of authorities applies to it; open connections continue.
"""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

from dovetail.config.sections.frontend import FrontendConfig
from dovetail.errors import ConfigError

logger = logging.getLogger("dovetail.server")
REFRESH_PERIOD_S = 1.0
ALPN = ["http/1.1"]
Stamp = tuple[tuple[int, int, int], ...]


class Refreshed(ssl.SSLContext):
    """A context that delegates new connections to another one, which can be replaced."""

    current: ssl.SSLContext

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        """Return the TLS object of a new connection, from the newest context."""
        return self.current.wrap_bio(incoming, outgoing, server_side, server_hostname, session)


class Tls:
    """The TLS of one API process."""

    def __init__(self, frontend: FrontendConfig) -> None:
        self._frontend = frontend
        self._stamp = _stamp(frontend)
        self.context = Refreshed(ssl.PROTOCOL_TLS_SERVER)
        self.context.current = _load(frontend)

    def refresh(self) -> bool:
        """Reload the files if they changed; return whether the new ones are in use.

        If the files do not match, as in the middle of a renewal, the old ones stay in use.
        """
        try:
            stamp = _stamp(self._frontend)
        except OSError:
            return False  # a file is being replaced: the next check will see it
        if stamp == self._stamp:
            return False
        self._stamp = stamp
        try:
            self.context.current = _load(self._frontend)
        except ConfigError as error:
            logger.warning("the TLS files changed but are not used: %s", error)
            return False
        logger.info("the TLS files changed: new connections use them")
        return True


def tls_of(frontend: FrontendConfig) -> Tls | None:
    """Return the TLS configured by the flags, None for plain HTTP. Raises: ConfigError"""
    if frontend.ssl_certfile is None:
        _check_unused(frontend)
        return None
    for flag, path in _files(frontend):
        _check_readable(flag, path)
    if frontend.ssl_cert_reqs and frontend.ssl_ca_certs is None:
        raise ConfigError(
            "client certificates cannot be checked without certificate authorities.",
            where="--ssl-cert-reqs",
            fix="name their file with --ssl-ca-certs.",
        )
    return Tls(frontend)


def _check_unused(frontend: FrontendConfig) -> None:
    """Raise ConfigError if a TLS flag is given without a certificate."""
    given = {
        "--ssl-keyfile": frontend.ssl_keyfile is not None,
        "--ssl-ca-certs": frontend.ssl_ca_certs is not None,
        "--ssl-ciphers": frontend.ssl_ciphers is not None,
        "--ssl-cert-reqs": bool(frontend.ssl_cert_reqs),
        "--enable-ssl-refresh": frontend.enable_ssl_refresh,
    }
    for flag, is_given in given.items():
        if is_given:
            raise ConfigError(
                "TLS needs a certificate.",
                where=flag,
                fix="name the certificate with --ssl-certfile.",
            )


def _files(frontend: FrontendConfig) -> list[tuple[str, str]]:
    named = (
        ("--ssl-certfile", frontend.ssl_certfile),
        ("--ssl-keyfile", frontend.ssl_keyfile),
        ("--ssl-ca-certs", frontend.ssl_ca_certs),
    )
    return [(flag, path) for flag, path in named if path is not None]


def _stamp(frontend: FrontendConfig) -> Stamp:
    """Return a stamp that changes when a file or the target of a symlink does."""
    stats = [Path(path).stat() for _, path in _files(frontend)]
    return tuple((stat.st_mtime_ns, stat.st_size, stat.st_ino) for stat in stats)


def _check_readable(flag: str, path: str) -> None:
    try:
        with Path(path).open("rb"):
            return
    except OSError as error:
        raise ConfigError(
            f"cannot read {path}: {error.strerror}.", where=flag, fix="name a readable PEM file."
        ) from error


def _load(frontend: FrontendConfig) -> ssl.SSLContext:
    """Return a context made from the current files. Raises: ConfigError"""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols(ALPN)
    _load_chain(context, frontend)
    if frontend.ssl_ca_certs is not None:
        try:
            context.load_verify_locations(frontend.ssl_ca_certs)
        except OSError as error:
            raise ConfigError(
                f"no certificates can be read from {frontend.ssl_ca_certs}: {_error_text(error)}.",
                where="--ssl-ca-certs",
                fix="name a PEM file with the authorities' certificates.",
            ) from error
    if frontend.ssl_ciphers is not None:
        try:
            context.set_ciphers(frontend.ssl_ciphers)
        except ssl.SSLError as error:
            raise ConfigError(
                f'OpenSSL knows no cipher of "{frontend.ssl_ciphers}".',
                where="--ssl-ciphers",
                fix="write them as `openssl ciphers` lists them, with colons between.",
            ) from error
    context.verify_mode = ssl.VerifyMode(frontend.ssl_cert_reqs)
    return context


def _load_chain(context: ssl.SSLContext, frontend: FrontendConfig) -> None:
    cert, key = str(frontend.ssl_certfile), frontend.ssl_keyfile
    was_asked: list[bool] = []

    def password() -> str:
        was_asked.append(True)  # without a callback OpenSSL would prompt on the terminal and wait
        return ""

    try:
        context.load_cert_chain(cert, key, password)
    except (OSError, ValueError) as error:
        raise _chain_error(cert, key, error, is_locked=bool(was_asked)) from error


def _chain_error(cert: str, key: str | None, error: Exception, *, is_locked: bool) -> ConfigError:
    where = "--ssl-keyfile" if key else "--ssl-certfile"
    if is_locked:
        return ConfigError(
            f"the key in {key or cert} is protected by a passphrase.",
            where=where,
            fix="remove it with `openssl pkey -in KEY -out UNLOCKED`.",
        )
    if isinstance(error, ssl.SSLError) and error.reason == "KEY_VALUES_MISMATCH":
        what = f"the key in {key or cert} does not belong to the certificate in {cert}."
        return ConfigError(what, where=where, fix="name the key the certificate was made with.")
    return ConfigError(
        f"no certificate and key can be read from {cert} and {key or 'the same file'}: "
        f"{_error_text(error)}.",
        where=where,
        fix="name PEM files: the chain with --ssl-certfile, its key with --ssl-keyfile.",
    )


def _error_text(error: Exception) -> str:
    """Return an error's text without the location in OpenSSL's source."""
    return str(error).partition(" (_ssl.c")[0]

"""The listening socket, bound before anything heavy starts: a taken port is reported early."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import logging
import socket
from collections.abc import Iterator
from pathlib import Path

from dovetail.config.sections.frontend import FrontendConfig
from dovetail.errors import ConfigError
from dovetail.server.http.addresses import DEFAULT_HOST
from dovetail.server.launch.unix_socket import unix_socket

logger = logging.getLogger("dovetail.server")

HANDED_OVER: list[socket.socket] = []
"""The bound socket that the parent process has handed to this one, if any."""


@contextlib.contextmanager
def listening(frontend: FrontendConfig) -> Iterator[socket.socket]:
    """Yield a bound socket as the flags say: --uds, or else host and port.

    Raises: ConfigError
    """
    if HANDED_OVER:
        yield _handed_over(HANDED_OVER[0], frontend)
        return
    if frontend.uds is not None:
        with unix_socket(frontend.uds) as sock:
            yield sock
        return
    sock = bind(frontend.host, frontend.port)
    warn_if_open(sock, has_key=frontend.has_keys)
    try:
        yield sock
    finally:
        sock.close()


def _handed_over(sock: socket.socket, frontend: FrontendConfig) -> socket.socket:
    """Return a socket that was handed over. Raises: ConfigError if the flags name another"""
    own = sock.getsockname()
    if sock.family == socket.AF_UNIX:
        is_other = frontend.uds is None or Path(frontend.uds).resolve() != Path(own).resolve()
    else:
        is_other = frontend.uds is not None or frontend.port not in (0, own[1])
    if is_other:
        raise ConfigError(
            f"the server listens at {url_of(sock)}, which stays as it is.",
            where="--port",
            fix="leave the address as it is, or start another server.",
        )
    return sock


def bind(host: str | None, port: int) -> socket.socket:
    """Return a bound socket that child processes inherit. Raises: ConfigError"""
    family, address = _address(host or DEFAULT_HOST, port)
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(host != "::"))
    try:
        sock.bind(address)
    except OSError as error:
        sock.close()
        raise _bind_error(host or DEFAULT_HOST, port, error) from error
    sock.set_inheritable(True)
    return sock


def _address(host: str, port: int) -> tuple[socket.AddressFamily, tuple[str, int]]:
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError) as error:
        raise ConfigError(
            f'"{host}" is not an address of this machine: {error}.',
            where="--host",
            fix="use 127.0.0.1 (this machine only) or 0.0.0.0 (every network).",
        ) from error
    family, _, _, _, address = addresses[0]
    return family, (str(address[0]), int(address[1]))


def _bind_error(host: str, port: int, error: OSError) -> ConfigError:
    match error.errno:
        case errno.EADDRINUSE:
            what, fix = f"port {port} is in use.", "stop the other program, or pass another --port."
        case errno.EACCES:
            what, fix = f"port {port} needs privileges.", "pass a --port above 1023."
        case _:
            what, fix = f"cannot listen on {host}: {error.strerror}.", "pass another --host."
    return ConfigError(
        what, where="--host" if error.errno == errno.EADDRNOTAVAIL else "--port", fix=fix
    )


def port_taken(sock: socket.socket, error: OSError) -> ConfigError:
    """Return the error for a port on which another process has started to listen."""
    if sock.family == socket.AF_UNIX:
        return ConfigError(f"cannot listen: {error.strerror}.", where="--uds")
    host, port = sock.getsockname()[:2]
    return _bind_error(str(host), int(port), error)


def url_of(sock: socket.socket, *, has_tls: bool = False) -> str:
    """Return the address to show: a URL, or "unix:" and the path of the socket."""
    if sock.family == socket.AF_UNIX:
        return f"unix:{sock.getsockname()}" + (" (https)" if has_tls else "")
    host, port = sock.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    return f"{'https' if has_tls else 'http'}://{shown}:{port}"


def warn_if_open(sock: socket.socket, *, has_key: bool) -> None:
    """Log a warning if other machines can use the server without a key."""
    host = str(sock.getsockname()[0])
    if not has_key and not ipaddress.ip_address(host.partition("%")[0]).is_loopback:
        logger.warning(
            "listening on %s without --api-key: everyone who can reach this address can use "
            "the server",
            host,
        )

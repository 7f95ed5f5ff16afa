"""Engines of several machines behind one server: where they meet, and what opens the way.

The server's machine is the head; the processes that run engines elsewhere are headless.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from dovetail.config.config import Config
from dovetail.errors import ConfigError

log = logging.getLogger(__name__)

HEADLESS = "--headless"
ADDRESS = "--data-parallel-address"
PORT = "--data-parallel-rpc-port"
SECRET = "--data-parallel-secret"
SECRET_VARIABLE = "DOVETAIL_DATA_PARALLEL_SECRET"
DEFAULT_PORT = 29550
MIN_SECRET_CHARS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """Where engines of other machines come to the server, and for how long each side waits."""

    host: str
    port: int
    limit_s: float
    secret: bytes = field(repr=False)

    @property
    def name(self) -> str:
        """Return the address as people write it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def meeting_of(config: Config) -> Meeting:
    """Return where the engines meet. Raises: ConfigError"""
    parallel = config.parallel
    host, secret = parallel.data_parallel_address, parallel.data_parallel_secret
    if not host:
        raise ConfigError(
            "engines of several machines need an address to meet at.",
            where=ADDRESS,
            fix="give the address of the server's machine, the same on every machine.",
        )
    if secret is None or len(secret) < MIN_SECRET_CHARS:
        what = "is needed" if secret is None else "must have 16 characters or more"
        raise ConfigError(
            f"a secret that the server and engines of other machines prove to each other {what}.",
            where=SECRET,
            fix=f"set {SECRET_VARIABLE} to the same text on every machine; `openssl rand -hex 32` "
            "makes a good one.",
        )
    return Meeting(
        host=host,
        port=parallel.data_parallel_rpc_port or DEFAULT_PORT,
        limit_s=parallel.data_parallel_join_timeout,
        secret=secret.encode(),
    )


def check_joining(config: Config, *, joins: bool) -> None:
    """Raise ConfigError for flags that do not fit with how machines are joined. `joins`: engines of
    other machines stand behind this server. Logs flags of no use."""
    parallel = config.parallel
    if parallel.headless:
        _check_headless(config)
    if parallel.headless or joins:
        meeting_of(config)
        return
    for flag in ("data_parallel_address", "data_parallel_rpc_port"):
        if config.value(flag) is not None:
            spelling = "--" + flag.replace("_", "-")
            log.info("%s has no effect: no engine of another machine is to come.", spelling)


def check_serves(config: Config) -> None:
    """Raise ConfigError for --headless where a command answers requests itself."""
    if config.parallel.headless:
        raise ConfigError(
            "engines without a server are for `dovetail serve`.",
            where=HEADLESS,
            fix="leave it out.",
        )


def _check_headless(config: Config) -> None:
    """Raise ConfigError for flags that mean a server."""
    parallel, frontend = config.parallel, config.frontend
    meant = {
        "--data-parallel-rank": parallel.data_parallel_rank is not None,
        "--data-parallel-hybrid-lb": parallel.data_parallel_hybrid_lb,
        "--api-server-count": frontend.api_server_count > 1,
        "--disable-frontend-multiprocessing": frontend.disable_frontend_multiprocessing,
    }
    for flag, is_meant in meant.items():
        if is_meant:
            raise ConfigError(
                f"{flag} is for a server, and this process is none.",
                where=HEADLESS,
                fix="leave one of the two out.",
            )

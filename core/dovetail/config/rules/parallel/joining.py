"""Engines of several machines behind one server: their meeting address, and how they start.

The server's machine is the head; processes that run engines elsewhere are headless.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from dovetail import registry
from dovetail.config.config import flags
from dovetail.config.sections.frontend import FrontendConfig
from dovetail.config.sections.parallel import ParallelConfig
from dovetail.errors import ConfigError
from dovetail.interfaces.engine_starter import RemoteEngines
from dovetail.registry.files import import_target

log = logging.getLogger(__name__)

HEADLESS = "--headless"
BACKEND = "--data-parallel-backend"
ADDRESS = "--data-parallel-address"
PORT = "--data-parallel-rpc-port"
SECRET = "--data-parallel-secret"
SECRET_VARIABLE = "DOVETAIL_DATA_PARALLEL_SECRET"
DEFAULT_PORT = 29550
MIN_SECRET_CHARS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """The address at which engines of other machines join, and how long each side waits."""

    host: str
    port: int
    limit_s: float
    secret: bytes = field(repr=False)

    @property
    def name(self) -> str:
        """Return the address as users write it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def meeting_of(parallel: ParallelConfig) -> Meeting:
    """Return the meeting address. Raises: ConfigError"""
    host = parallel.data_parallel_address
    if not host:
        raise ConfigError(
            "engines of several machines need an address to meet at.",
            where=ADDRESS,
            fix="give the address of the server's machine, the same on every machine.",
        )
    return _meeting(parallel, host, parallel.data_parallel_rpc_port or DEFAULT_PORT)


def meeting_at(parallel: ParallelConfig, host: str) -> Meeting:
    """Return the meeting for engines from an EngineStarter: at this host unless flags say
    otherwise, at any free port (0), with a secret for this start. Raises: ConfigError"""
    if parallel.data_parallel_secret is None:
        parallel = replace(parallel, data_parallel_secret=secrets.token_hex(32))
    host = parallel.data_parallel_address or host
    return _meeting(parallel, host, parallel.data_parallel_rpc_port or 0)


def _meeting(parallel: ParallelConfig, host: str, port: int) -> Meeting:
    secret = parallel.data_parallel_secret
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
        port=port,
        limit_s=parallel.data_parallel_join_timeout,
        secret=secret.encode(),
    )


def remote_engines_class() -> Callable[..., RemoteEngines]:
    """Return the RemoteEngines class. Raises: PluginError"""
    default = flags()["data_parallel_backend"].default
    target = registry.admin.value_of("data_parallel_backend", default, where=BACKEND)
    found: type[RemoteEngines] = import_target(target)
    return found


def starter_of(parallel: ParallelConfig) -> str | None:
    """Return the "module:class" of the EngineStarter for other machines. It is None if users start
    them, or all engines are here. Raises: PluginError"""
    name = parallel.data_parallel_backend
    if name == flags()["data_parallel_backend"].default:
        return None
    starter: str | None = registry.admin.value_of("data_parallel_backend", name, where=BACKEND)
    return starter


def check_joining(parallel: ParallelConfig, frontend: FrontendConfig, *, joins: bool) -> None:
    """Raise ConfigError for flags that do not fit with how machines are joined. `joins`: engines of
    other machines join this server. Logs flags without effect."""
    if parallel.headless:
        _check_headless(parallel, frontend)
    if starter_of(parallel) is not None:
        return  # it provides the address; the secret is generated
    if parallel.headless or joins:
        meeting_of(parallel)
        return
    for flag in ("data_parallel_address", "data_parallel_rpc_port"):
        if getattr(parallel, flag) is not None:
            spelling = "--" + flag.replace("_", "-")
            log.info("%s has no effect: no engine of another machine is to come.", spelling)


def check_serves(parallel: ParallelConfig) -> None:
    """Raise ConfigError for --headless with a command that answers requests itself."""
    if parallel.headless:
        raise ConfigError(
            "engines without a server are for `dovetail serve`.",
            where=HEADLESS,
            fix="leave it out.",
        )


def _check_headless(parallel: ParallelConfig, frontend: FrontendConfig) -> None:
    """Raise ConfigError for flags that only a server can have."""
    flags = {
        "--data-parallel-rank": parallel.data_parallel_rank is not None,
        "--data-parallel-hybrid-lb": parallel.data_parallel_hybrid_lb,
        "--api-server-count": frontend.api_server_count > 1,
        "--disable-frontend-multiprocessing": frontend.disable_frontend_multiprocessing,
        f"{BACKEND} {parallel.data_parallel_backend}": starter_of(parallel) is not None,
    }
    for flag, is_meant in flags.items():
        if is_meant:
            raise ConfigError(
                f"{flag} is for a server, and this process is not one.",
                where=HEADLESS,
                fix="leave one of the two out.",
            )

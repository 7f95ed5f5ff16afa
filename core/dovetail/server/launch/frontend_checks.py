"""check_frontend: all checks of the HTTP flags that need no engine.

Imports no engine, no torch and no metrics: processes can share metrics only if a folder is set
before prometheus_client is imported.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence

from dovetail import registry
from dovetail.config.sections.frontend import FrontendConfig
from dovetail.errors import ConfigError
from dovetail.server.http.access_log import silent_paths

_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s@?#*A-Z]+")
logger = logging.getLogger("dovetail.server")


def check_frontend(frontend: FrontendConfig) -> None:
    """Raise ConfigError for invalid HTTP flags, each with a fix."""
    _check_logs(frontend)
    _check_processes(frontend)
    _check_root_path(frontend.root_path)
    _check_origins(frontend.allowed_origins)
    registry.load("gate", frontend.gate, where="--gate").check(frontend)
    if frontend.ssl_certfile is not None or _names_tls(frontend):
        from dovetail.server.launch.tls import tls_of

        tls_of(frontend)
        if frontend.ssl_ca_certs is not None and not frontend.ssl_cert_reqs:
            logger.warning(
                "--ssl-ca-certs has no effect without --ssl-cert-reqs: clients are not asked "
                "for certificates"
            )
    if frontend.middleware:
        from dovetail.server.http.user_middleware import load_middleware

        load_middleware(frontend)
    if frontend.chat_template:
        from dovetail.server.generate.rendering.building import check_template

        check_template(frontend)


def _names_tls(frontend: FrontendConfig) -> bool:
    files = (frontend.ssl_keyfile, frontend.ssl_ca_certs, frontend.ssl_ciphers)
    return any(files) or bool(frontend.ssl_cert_reqs) or frontend.enable_ssl_refresh


def _check_logs(frontend: FrontendConfig) -> None:
    if frontend.enable_log_outputs and not frontend.enable_log_requests:
        logger.warning("--enable-log-outputs has no effect without --enable-log-requests")
    if frontend.enable_log_deltas and not frontend.enable_log_outputs:
        logger.warning("--enable-log-deltas has no effect without --enable-log-outputs")
    silent_paths(frontend)


def _check_processes(frontend: FrontendConfig) -> None:
    if frontend.api_server_count > 1 and frontend.disable_frontend_multiprocessing:
        raise ConfigError(
            "several server processes cannot share one process.",
            where="--api-server-count",
            fix="leave --disable-frontend-multiprocessing out, or use one.",
        )


def _check_origins(origins: Sequence[str]) -> None:
    """Raise ConfigError for an origin that no browser sends: the flag would do nothing.

    Source: RFC 6454, section 7: scheme, host and port alone, or "null".
    """
    for origin in origins:
        if origin not in ("*", "null") and not _ORIGIN.fullmatch(origin):
            raise ConfigError(
                f'no browser ever sends the origin "{origin}".',
                where="--allowed-origins",
                fix="write scheme://host or scheme://host:port, e.g. https://chat.example.com.",
            )


def _check_root_path(path: str | None) -> None:
    if path and not path.startswith("/"):
        raise ConfigError(
            f'"{path}" is not a path.', where="--root-path", fix=f"begin it with a slash: /{path}"
        )

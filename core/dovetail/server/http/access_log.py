"""Filters of the access log: --disable-access-log-for-endpoints, and keys in queries."""

from __future__ import annotations

import logging
import re
from urllib.parse import unquote_plus

from dovetail.config.sections.frontend import FrontendConfig
from dovetail.errors import ConfigError

FLAG = "--disable-access-log-for-endpoints"
LOGGER = "uvicorn.access"
LOGGERS = (LOGGER, "uvicorn.error")
"""The second has the lines of WebSockets."""


class SilentPaths(logging.Filter):
    """Drops uvicorn's lines for some paths. Source of the record's arguments: uvicorn's access
    log."""

    def __init__(self, paths: frozenset[str]) -> None:
        super().__init__()
        self._paths = paths

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a line is logged."""
        args = record.args if isinstance(record.args, tuple) else ()
        found = next((str(one) for one in args if str(one).startswith("/")), "")
        return found.partition("?")[0] not in self._paths


class NoSecrets(logging.Filter):
    """Writes *** instead of keys in query strings. The server does not read keys there, but
    browsers and old clients send them."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Return True; secrets in the line's query are masked. Mutates: record"""
        if isinstance(record.args, tuple):
            record.args = tuple(masked(a) if isinstance(a, str) else a for a in record.args)
        return True


_SECRET_NAME = re.compile(
    "key|token|secret|passw|pwd|auth|signature|credential|^sig$|^code$", re.IGNORECASE
)


def masked(path: str) -> str:
    """Return a path with the secrets in its query masked, even if a name is percent-encoded."""
    place, mark, query = path.partition("?")
    if not mark:
        return path
    parts = re.split("([&;])", query)
    return place + mark + "".join(map(_masked_part, parts))


def _masked_part(part: str) -> str:
    name, mark, _ = part.partition("=")
    return f"{name}=***" if mark and _SECRET_NAME.search(unquote_plus(name)) else part


def silent_paths(frontend: FrontendConfig) -> frozenset[str]:
    """Return the paths. Raises: ConfigError for an entry that is not a path"""
    given = (frontend.disable_access_log_for_endpoints or "").split(",")
    paths = frozenset(path.strip() for path in given if path.strip())
    for path in sorted(paths):
        if not path.startswith("/"):
            raise ConfigError(f'"{path}" is not a path.', where=FLAG, fix=f"write /{path}.")
    return paths


def silence(frontend: FrontendConfig) -> None:
    """Make the access log skip these paths (replacing earlier ones) and mask keys. Mutates:
    uvicorn's loggers"""
    paths = silent_paths(frontend)
    for logger in map(logging.getLogger, LOGGERS):
        for one in [one for one in logger.filters if isinstance(one, SilentPaths | NoSecrets)]:
            logger.removeFilter(one)
        logger.addFilter(NoSecrets())
        if paths:
            logger.addFilter(SilentPaths(paths))

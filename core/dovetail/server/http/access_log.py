"""What the access log leaves out: --disable-access-log-for-endpoints, and keys in queries."""

from __future__ import annotations

import logging
import re
from urllib.parse import unquote_plus

from dovetail.config.sections.frontend import FrontendConfig
from dovetail.errors import ConfigError

FLAG = "--disable-access-log-for-endpoints"
LOGGER = "uvicorn.access"


class SilentPaths(logging.Filter):
    """Drops uvicorn's lines for some paths. Source of their arguments: uvicorn's access log."""

    def __init__(self, paths: frozenset[str]) -> None:
        super().__init__()
        self._paths = paths

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a line is written."""
        args = record.args
        if not isinstance(args, tuple) or len(args) < 3:
            return True
        return str(args[2]).partition("?")[0] not in self._paths


class NoSecrets(logging.Filter):
    """Writes *** in place of the keys that clients put into their queries, where no server reads
    them: browsers and old clients send them so."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Return True; the line's query is masked. Mutates: record"""
        args = record.args
        if isinstance(args, tuple) and len(args) >= 3:
            record.args = (*args[:2], masked(str(args[2])), *args[3:])
        return True


_SECRET_NAME = re.compile(
    "key|token|secret|passw|pwd|auth|signature|credential|^sig$|^code$", re.IGNORECASE
)


def masked(path: str) -> str:
    """Return a path with the values of its query's secrets masked, however their names are
    written."""
    place, mark, query = path.partition("?")
    if not mark:
        return path
    parts = re.split("([&;])", query)
    return place + mark + "".join(map(_masked_part, parts))


def _masked_part(part: str) -> str:
    name, mark, _ = part.partition("=")
    return f"{name}=***" if mark and _SECRET_NAME.search(unquote_plus(name)) else part


def silent_paths(frontend: FrontendConfig) -> frozenset[str]:
    """Return the paths. Raises: ConfigError for what is not a path"""
    given = (frontend.disable_access_log_for_endpoints or "").split(",")
    paths = frozenset(path.strip() for path in given if path.strip())
    for path in sorted(paths):
        if not path.startswith("/"):
            raise ConfigError(f'"{path}" is not a path.', where=FLAG, fix=f"write /{path}.")
    return paths


def silence(frontend: FrontendConfig) -> None:
    """Let the access log leave these paths out, in place of those of before, and mask keys.
    Mutates: uvicorn's logger"""
    logger = logging.getLogger(LOGGER)
    for one in [found for found in logger.filters if isinstance(found, SilentPaths | NoSecrets)]:
        logger.removeFilter(one)
    logger.addFilter(NoSecrets())
    paths = silent_paths(frontend)
    if paths:
        logger.addFilter(SilentPaths(paths))

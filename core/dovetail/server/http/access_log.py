"""Which paths have no line in the access log: --disable-access-log-for-endpoints."""

from __future__ import annotations

import logging

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


def silent_paths(frontend: FrontendConfig) -> frozenset[str]:
    """Return the paths. Raises: ConfigError for what is not a path"""
    given = (frontend.disable_access_log_for_endpoints or "").split(",")
    paths = frozenset(path.strip() for path in given if path.strip())
    for path in sorted(paths):
        if not path.startswith("/"):
            raise ConfigError(f'"{path}" is not a path.', where=FLAG, fix=f"write /{path}.")
    return paths


def silence(frontend: FrontendConfig) -> None:
    """Let the access log leave these paths out, in place of those of before. Mutates: uvicorn's
    logger"""
    logger = logging.getLogger(LOGGER)
    for one in [found for found in logger.filters if isinstance(found, SilentPaths)]:
        logger.removeFilter(one)
    paths = silent_paths(frontend)
    if paths:
        logger.addFilter(SilentPaths(paths))

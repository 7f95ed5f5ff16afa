"""Log lines: plain text on standard error, one line each, or as set in --log-config-file.

Modules log to loggers under "dovetail". The loggers of the plugin and kernel packages have it as
their parent. This file only sets handlers and levels of these and of uvicorn's loggers. Format of
the file: the Python documentation, logging.config.dictConfig.
"""

from __future__ import annotations

import logging
import logging.config
import re
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dovetail.config.rules.observability.log_config import FLAG
from dovetail.errors import ConfigError
from dovetail.registry.blame import raised_by
from dovetail.registry.files import import_target

OTHER_PACKAGES = ("dovetail_plugins", "dovetail_kernels")
UVICORN_LOGGERS = ("uvicorn", "uvicorn.error", "uvicorn.access", "uvicorn.asgi")
TRACE = 5
"""uvicorn's level below debug."""

TEXT = "dovetail.observability.logging:LineFormatter"
FORMAT = "%(asctime)s %(levelname)-7s %(process)d %(name)s: %(message)s"


class LineFormatter(logging.Formatter):
    """Formats log lines with UTC times in milliseconds. A message is always one line, lines of a
    traceback are marked, and terminal control characters are escaped."""

    converter = staticmethod(time.gmtime)
    default_time_format = "%H:%M:%S"
    default_msec_format = "%s.%03d"

    def __init__(self, prefix: str = "") -> None:
        super().__init__(prefix.replace("%", "%%") + FORMAT)

    def format(self, record: logging.LogRecord) -> str:
        """Return the formatted line, or several for a traceback."""
        whole = visible(super().format(record))
        head, *rest = self._parts(record, whole)
        return "\n".join([head, *(f"{BELOW}{line}" for line in rest)])

    def _parts(self, record: logging.LogRecord, whole: str) -> list[str]:
        """Return the message's line and its traceback's lines. Text from a client may be in both,
        and must not look like a log line of its own."""
        message = visible(self.formatMessage(record))
        head = message.replace("\n", "\\n")
        below = whole[len(message) :].removeprefix("\n")
        return [head, *below.split("\n")] if below else [head]


BELOW = "  | "
"""Prefix of traceback lines. No other line begins with it."""


_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Characters that move a terminal's cursor or change the direction of text, except tab and line
feed."""


def visible(text: str) -> str:
    """Return text with control characters written out, as in \\x1b; line feeds stay."""
    return _CONTROLS.sub(lambda found: repr(found[0])[1:-1], text)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """The arguments of `configure`, for child processes that log in the same way."""

    level: str
    config: dict[str, Any] | None
    form: str = TEXT
    prefix: str
    is_wanted: bool

    def apply(self) -> None:
        """Set up this process's loggers in the same way. Mutates: loggers"""
        configure(
            self.level,
            config=self.config,
            form=self.form,
            prefix=self.prefix,
            is_wanted=self.is_wanted,
        )


_last: list[LogSettings] = []


def settings() -> LogSettings | None:
    """Return the arguments of the last `configure`, None before the first."""
    return _last[-1] if _last else None


def configure(
    level: str,
    *,
    uvicorn_level: str | None = None,
    config: Mapping[str, Any] | None = None,
    form: str = TEXT,
    prefix: str = "",
    is_wanted: bool = True,
) -> None:
    """Set up all loggers of this process: dovetail's, uvicorn's if it serves, the config file's.

    Loggers that the file does not name are set up as without a file. With `is_wanted` False nothing
    is changed. Mutates: loggers. Raises: ConfigError
    """
    _last[:] = [
        LogSettings(
            level=level,
            config=None if config is None else dict(config),
            form=form,
            prefix=prefix,
            is_wanted=is_wanted,
        )
    ]
    if not is_wanted:
        _check_unused(config)
        return
    setup(level, prefix, form)
    if uvicorn_level is not None:
        setup_uvicorn(uvicorn_level)
    if config is not None:
        _apply(config)


def _check_unused(config: Mapping[str, Any] | None) -> None:
    if config is not None:
        raise ConfigError(
            "the file sets up logging, but --no-configure-logging forbids that.",
            where=FLAG,
            fix="leave one of the two out.",
        )


def _apply(config: Mapping[str, Any]) -> None:
    """Apply a dictConfig on top of the current setup; loggers it does not name stay enabled."""
    saved_handlers = {
        name: list(logging.getLogger(name).handlers) for name in ("dovetail", "uvicorn")
    }
    try:
        named: dict[str, Any] = dict(config.get("loggers", {}))
        logging.config.dictConfig({"disable_existing_loggers": False, **config, "loggers": named})
    except (ValueError, TypeError, AttributeError, ImportError, OSError) as error:
        cause = f": {error.__cause__}" if error.__cause__ else ""
        raise ConfigError(
            f"the logging configuration is not valid: {error}{cause}.",
            where=FLAG,
            fix="correct the file; its format is that of Python's logging.config.dictConfig.",
        ) from error
    goes_to_root = bool(config.get("root", {}).get("handlers"))
    for name, handlers in saved_handlers.items():
        entry = named.get(name, {})
        if not entry.get("handlers"):
            logger = logging.getLogger(name)
            logger.handlers = [] if goes_to_root else handlers
            logger.propagate = entry.get("propagate", goes_to_root)


def setup(level: str, prefix: str = "", form: str = TEXT) -> None:
    """Send dovetail's log to standard error at this level. May be called again.

    Every line begins with `prefix`; `form` is the "module:class" of the formatter. Mutates: the
    logger "dovetail", and the loggers of plugins and kernels
    """
    logger = logging.getLogger("dovetail")
    for name in OTHER_PACKAGES:
        logging.getLogger(name).parent = logger
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(import_target(form)(prefix))
    handler.addFilter(name_plugin)
    logger.handlers = [handler]
    logger.setLevel(level.upper())
    logger.propagate = False


def name_plugin(record: logging.LogRecord) -> bool:
    """Append the name of the plugin that raised the error to a line with a traceback, if it is from
    another package. Mutates: record"""
    error = record.exc_info[1] if record.exc_info else None
    culprit = None if error is None else raised_by(error)
    if culprit is not None:
        record.msg, record.args = f"{record.getMessage()} ({culprit})", ()
    return True


def shortened(text: str, max_chars: int | None) -> str:
    """Return text cut to --max-log-len, followed by how much was left out."""
    if max_chars is None or len(text) <= max_chars:
        return text
    return f"{text[:max_chars]}... ({len(text) - max_chars} more)"


def setup_uvicorn(level: str) -> None:
    """Send uvicorn's lines to the same handlers in the same format. Mutates: uvicorn's loggers"""
    handlers = logging.getLogger("dovetail").handlers
    for name in UVICORN_LOGGERS:
        logger = logging.getLogger(name)
        logger.handlers = list(handlers) if name == "uvicorn" else []
        logger.setLevel(TRACE if level.lower() == "trace" else level.upper())
        logger.propagate = name != "uvicorn"

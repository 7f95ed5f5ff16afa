"""--chat-template: a file's name or the template itself. All code that reads the flag uses this."""

from __future__ import annotations

import os
from pathlib import Path

from dovetail.errors import ConfigError

WHERE = "--chat-template"
_FIX = "name a template's file, or give the template itself."
_MARKERS = ("{{", "{%", "{#", "\n")


def template_file(value: str) -> Path | None:
    """Return the file that a value names, or None if it is the template itself.

    An existing file wins, whatever its name. Raises: ConfigError if it is neither.
    """
    if os.path.isfile(value):  # noqa: PTH113 - Path.is_file raises for texts too long for a name
        return Path(value)
    if any(marker in value for marker in _MARKERS):
        return None
    raise ConfigError(f"{value!r} is neither a file nor a template.", where=WHERE, fix=_FIX)


def load_template(value: str | None) -> str | None:
    """Return the template, from a file or given directly. Raises: ConfigError"""
    file = template_file(value) if value else None
    if file is None:
        return value or None
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"cannot read {value}: {reason}.", where=WHERE, fix=_FIX) from error

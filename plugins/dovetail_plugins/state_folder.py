"""The user's folder of what dovetail remembers: histories, settings of programs, a key.

It is $XDG_STATE_HOME/dovetail. Source: the XDG Base Directory Specification.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def user_folder(variable: str, usual: str, environ: Mapping[str, str] = os.environ) -> Path:
    """Return dovetail's folder within one of the user's base folders, which may not exist yet.

    `variable` names the base folder if it is absolute; otherwise it is `usual`, below the home.
    """
    base = Path(environ.get(variable, ""))
    return (base if base.is_absolute() else Path.home() / usual) / "dovetail"


def state_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder, which may not exist yet."""
    return user_folder("XDG_STATE_HOME", ".local/state", environ)

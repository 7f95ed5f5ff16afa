"""The user's folder of what dovetail remembers: histories, settings of programs, a key.

It is $XDG_STATE_HOME/dovetail. Source: the XDG Base Directory Specification.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def state_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder, which may not exist yet."""
    state = Path(environ.get("XDG_STATE_HOME", ""))
    folder = state if state.is_absolute() else Path.home() / ".local/state"
    return folder / "dovetail"

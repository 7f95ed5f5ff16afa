"""Line editing in the terminal, with a history of earlier lines saved on disk.

The file is $XDG_STATE_HOME/dovetail/NAME, readable only by its owner.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from dovetail_plugins.state_folder import state_folder

MAX_LINES = 1000


def history_file(name: str, environ: Mapping[str, str] = os.environ) -> Path:
    """Return the history file of a command."""
    return state_folder(environ) / name


@contextlib.contextmanager
def line_editing(file: Path | None) -> Iterator[None]:
    """Give input() cursor keys and the history in `file`; new lines are saved at the end.

    Does nothing if the input is not a terminal or the platform has no line editing. An unreadable
    or unwritable file is reported once.
    """
    try:
        import readline
    except ImportError:
        readline = None  # type: ignore[assignment]
    if readline is None or not sys.stdin.isatty():
        yield
        return
    readline.set_history_length(MAX_LINES)
    if file is not None:
        with _telling(file), contextlib.suppress(FileNotFoundError):
            readline.read_history_file(file)
    try:
        yield
    finally:
        if file is not None:
            with _telling(file):
                file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                os.close(os.open(file, os.O_CREAT | os.O_WRONLY, 0o600))
                readline.write_history_file(file)


@contextlib.contextmanager
def _telling(file: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        print(f"the history in {file} is not used: {error.strerror}.", file=sys.stderr)

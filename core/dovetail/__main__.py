"""`python -m dovetail`, and `python core/dovetail` in a checkout where nothing is installed."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def _leave_first_entry() -> None:
    """Drop the interpreter's first path entry, so that nothing is imported from it.

    With -m that entry is the working folder (left in place if it contains the dovetail package);
    without -m it is this folder, whose modules are not top-level ones. Mutates: sys.path
    """
    first = Path(sys.path[0]).resolve()
    if not sys.flags.safe_path and first in (HERE, Path.cwd()) and first != HERE.parent:
        del sys.path[0]


def _use_checkout() -> None:
    """Put the three source roots on the path. Mutates: sys.path"""
    root = HERE.parents[1]
    sys.path[0:0] = [str(root / folder) for folder in ("core", "plugins", "kernels")]


if __name__ == "__main__":
    _leave_first_entry()
    if not __package__:
        _use_checkout()
    from dovetail.cli.main import main

    sys.exit(main())

"""`python -m dovetail`, and `python core/dovetail` in a checkout where nothing is installed."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def _use_checkout() -> None:
    """Put the three source roots on the path, here and for child processes."""
    root = Path(__file__).resolve().parents[2]
    roots = [str(root / folder) for folder in ("core", "plugins", "kernels")]
    sys.path[0:1] = roots
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [*roots, *filter(None, [os.environ.get("PYTHONPATH")])]
    )


if __name__ == "__main__":
    if not __package__:
        _use_checkout()
    from dovetail.cli.main import main

    sys.exit(main())

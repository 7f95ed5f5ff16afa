"""Runs `dovetail launch` as a user does, with a home of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

LIMIT_S = 180.0
OTHERS = ("ANTHROPIC_", "CLAUDE", "CLINE", "CODEX_", "OPENAI_", "OPENCODE", "PYTHON", "XDG_")
"""What variables of coding agents and of Python begin with: these are not the tests' to hand on."""


def environment(folder: Path, **more: str) -> dict[str, str]:
    """Return variables with a home and no servers of its own."""
    others = {name: value for name, value in os.environ.items() if not name.startswith(OTHERS)}
    for name in ("home", "run", "state"):
        (folder / name).mkdir(exist_ok=True)
    own = {
        "HOME": str(folder / "home"),
        "XDG_RUNTIME_DIR": str(folder / "run"),
        "XDG_STATE_HOME": str(folder / "state"),
        "TMPDIR": str(folder),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    return others | own | more


PROGRAM = """
import sys

sys.path[:0] = {paths!r}
from dovetail.cli.main import main

sys.exit(main(["launch", *sys.argv[1:]]))
"""
"""`dovetail` as installed: a variable with the import path would reach programs in Python, too."""


def launch(*words: str, env: dict[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Return how `dovetail launch` ended, run in a folder without a terminal."""
    paths = [path for path in sys.path if path]
    return subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM.format(paths=paths), *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        env=env | {"PWD": str(folder)},
        cwd=folder,
    )

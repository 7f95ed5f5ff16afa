"""Every package of contrib keeps the clauses of its kinds, without the libraries that it uses."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

from dovetail.processes.process import child_environment

CONTRIB = Path(__file__).resolve().parents[2] / "contrib"
GROUP = "dovetail."


def test_every_package_passes_the_check() -> None:
    projects = sorted(CONTRIB.glob("*/pyproject.toml"))
    words = [
        f"{group.removeprefix(GROUP)}:{name}"
        for project in projects
        for group, names in tomllib.loads(project.read_text())["project"]["entry-points"].items()
        for name in names
    ]
    env = child_environment()
    folders = [str(project.parent) for project in projects]
    env["PYTHONPATH"] = os.pathsep.join([*folders, env["PYTHONPATH"]])
    done = subprocess.run(
        [sys.executable, "-m", "dovetail", "plugins", "check", *words],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert all(f"{word}@" in done.stdout for word in words)

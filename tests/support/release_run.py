"""Commands of the release checklist: each runs to its end, with its output in a file."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

LIMIT_S = 1800
TAIL = 600
"""How many characters of a failed command's output are shown."""


class Failed(Exception):
    """A step of the checklist failed; the text says why."""


class Untried(Exception):
    """A step cannot be tried here; the text says why."""


class Commands:
    """Runs commands one after the other. Output goes to numbered files of a folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self._count = folder, 0

    def log_of(self, word: str) -> Path:
        """Return a new file for the output of a command."""
        self._count += 1
        return self.folder / f"{self._count:02}_{Path(word).name}.log"

    def run(
        self, *words: str | Path, cwd: Path | None = None, env: Mapping[str, str] | None = None
    ) -> str:
        """Run a command and return what it printed. Raises: Failed if its status is not 0"""
        command = [str(word) for word in words]
        log = self.log_of(command[2] if command[1:2] == ["-m"] else command[0])
        with log.open("w+", encoding="utf-8") as output:
            done = subprocess.run(
                command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                cwd=cwd, env=env, check=False, timeout=LIMIT_S,
            )  # fmt: skip
        text = log.read_text(encoding="utf-8", errors="replace")
        if done.returncode:
            raise Failed(f"`{' '.join(command[:6])}` ended with {done.returncode}: {text[-TAIL:]}")
        return text

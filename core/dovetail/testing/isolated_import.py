"""Imports plugin targets, each in a process that has imported none of the others.

`python -m dovetail.testing.isolated_import` reads JSON [[kind, target, [package, ...]], ...] from
standard input and writes JSON {target: {"error": text or null, "imported": [package, ...]}}. torch,
which most plugins need, is imported once and its memory shared by fork; no parallel region runs
before.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from dovetail.process import child_environment

Wanted = tuple[str, str, tuple[str, ...]]
TIMEOUT_S = 300


def import_each(wanted: Sequence[Wanted]) -> dict[str, dict[str, Any]]:
    """Return, for each (kind, target, packages), the import error and which packages it loaded."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "dovetail.testing.isolated_import"],
        input=json.dumps(wanted),
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
        env=_environment(),
    )
    if done.returncode:
        raise RuntimeError(f"the import process failed:\n{done.stderr}")
    answer: dict[str, dict[str, Any]] = json.loads(done.stdout)
    return answer


def _environment() -> dict[str, str]:
    return child_environment() | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def _main() -> None:
    wanted: list[Wanted] = json.load(sys.stdin)
    if wanted and importlib.util.find_spec("torch"):
        importlib.import_module("torch")
    importlib.import_module("dovetail.registry")
    at_once = os.cpu_count() or 1
    answers: dict[str, dict[str, Any]] = {}
    for first in range(0, len(wanted), at_once):
        some = wanted[first : first + at_once]
        children = [_begin_child(*one) for one in some]
        ends = [_end_child(*child) for child in children]
        answers |= {target: end for (_, target, _), end in zip(some, ends, strict=True)}
    print(json.dumps(answers))


def _begin_child(kind: str, target: str, packages: Sequence[str]) -> tuple[int, int]:
    """Return a child process that imports a target, and the pipe that it writes its answer to."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        with os.fdopen(writing, "w") as pipe:
            json.dump(_import_one(kind, target, packages), pipe)
        os._exit(0)
    os.close(writing)
    return child, reading


def _end_child(child: int, reading: int) -> dict[str, Any]:
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    if not text:
        return {"error": "the importing process died", "imported": []}
    answer: dict[str, Any] = json.loads(text)
    return answer


def _import_one(kind: str, target: str, packages: Sequence[str]) -> dict[str, Any]:
    from dovetail import registry

    os.dup2(2, 1)  # what a plugin prints on import must not end up in the answer
    before = set(sys.modules)
    error = None
    try:
        registry.load_target(kind, target)
    except Exception as fault:
        error = str(fault)
    loaded = set(sys.modules) - before
    return {"error": error, "imported": [name for name in packages if name in loaded]}


if __name__ == "__main__":
    _main()

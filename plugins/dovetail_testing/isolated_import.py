"""Imports plugin targets, each module's in a process that has imported no other's.

`python -m dovetail_testing.isolated_import` reads JSON [[kind, target, [package, ...]], ...] from
standard input and writes JSON {target: {"error": text or null, "imported": [package, ...]}}. torch,
which most plugins need, is imported once for several modules and its memory shared by fork; no
parallel region runs before. For many plugins of a kind, their shared modules are imported once too.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from dovetail.processes.process import child_environment

Wanted = tuple[str, str, tuple[str, ...]]
TIMEOUT_S = 300
MANY = 8
SHARED = {
    "model": (
        *("transformers.modeling_utils", "transformers.models.auto", "dovetail.layers.decoder"),
    ),
    "api": (
        *("fastapi", "dovetail.server.generate.body.chat"),
        "dovetail.server.generate.tools.tool_choice",
    ),
}
"""Imports of many plugins of a kind that no plugin lists as a package."""


def import_each(wanted: Sequence[Wanted]) -> dict[str, dict[str, Any]]:
    """Return, for each (kind, target, packages), the import error and which packages it loaded."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "dovetail_testing.isolated_import"],
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
    modules: dict[str, list[Wanted]] = {}
    for one in wanted:
        modules.setdefault(one[1].rpartition(":")[0], []).append(one)
    groups = list(modules.values())
    if len(groups) > 1 and importlib.util.find_spec("torch"):
        importlib.import_module("torch")
    importlib.import_module("dovetail.registry")
    answers = _import_groups([group for group in groups if any(one[2] for one in group)])
    groups = [group for group in groups if not any(one[2] for one in group)]
    for kind, names in SHARED.items():
        if sum(group[0][0] == kind for group in groups) >= MANY:
            for name in names:
                importlib.import_module(name)
    print(json.dumps(answers | _import_groups(groups)))


def _import_groups(groups: Sequence[Sequence[Wanted]]) -> dict[str, dict[str, Any]]:
    """Return target -> what its import came to, for targets by module."""
    gc.freeze()  # a collection in a child would copy every page
    answers: dict[str, dict[str, Any]] = {}
    at_once = os.cpu_count() or 1
    for first in range(0, len(groups), at_once):
        some = groups[first : first + at_once]
        children = [_begin_child(group) for group in some]
        for group, child in zip(some, children, strict=True):
            answers |= _end_child(group, *child)
    return answers


def _begin_child(group: Sequence[Wanted]) -> tuple[int, int]:
    """Return a child process that imports a module's targets, and the pipe that it writes its
    answers to."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        os.dup2(2, 1)  # output of a plugin's import must not get into the answer
        before = set(sys.modules)
        with os.fdopen(writing, "w") as pipe:
            json.dump({one[1]: _import_one(*one, before) for one in group}, pipe)
        os._exit(0)
    os.close(writing)
    return child, reading


def _end_child(group: Sequence[Wanted], child: int, reading: int) -> dict[str, dict[str, Any]]:
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    if not text:
        died = {"error": "the importing process died", "imported": []}
        return {target: died for _, target, _ in group}
    answers: dict[str, dict[str, Any]] = json.loads(text)
    return answers


def _import_one(
    kind: str, target: str, packages: Sequence[str], before: set[str]
) -> dict[str, Any]:
    from dovetail import registry

    error = None
    try:
        registry.admin.load_target(kind, target)
    except Exception as fault:
        error = str(fault)
    loaded = set(sys.modules) - before
    return {"error": error, "imported": [name for name in packages if name in loaded]}


if __name__ == "__main__":
    _main()

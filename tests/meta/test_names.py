"""Names say what the thing is: no local, parameter or function is called by a bare participle.

`reply`, `max_tokens` and `layouts` say it; `told`, `most` and `kept` do not.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILLERS = frozenset(
    ("told", "made", "asked", "meant", "heard", "gone", "held", "kept", "most", "least")
)
FUNCTION_FILLERS = frozenset(("told", "told_of", "made", "asked", "heard", "gone", "nothing"))
MAX_LINES = 8
"""A longer function needs names that say something."""

FOLDERS = (
    "core/dovetail",
    "plugins/dovetail_plugins",
    "plugins/dovetail_testing",
    "kernels/dovetail_grammars",
    "kernels/dovetail_kernels",
)
OPEN = ("contrib", "tests", "benchmarks")
"""Folders whose names are still to be changed. Move a folder up once it is clean."""

PROMISED = frozenset((("calls_constraint", "most"), ("separated", "most")))
"""(function, parameter) of a plugin interface: plugins may pass it by keyword."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(tree: ast.AST) -> Iterator[Function]:
    for node in ast.walk(tree):
        if isinstance(node, Function):
            yield node


def names_bound(function: Function) -> Iterator[str]:
    """Yield the parameters and locals of a function, with those of functions in it."""
    for node in ast.walk(function):
        match node:
            case ast.arg(arg=name):
                yield name
            case ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.ExceptHandler(name=str(name)):
                yield name
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield name


def fillers(tree: ast.AST) -> list[str]:
    """Return what is named by a filler, as "function: name"."""
    found = []
    for function in functions(tree):
        if function.name.strip("_") in FUNCTION_FILLERS:
            found.append(f"{function.name}: the function")
        assert function.end_lineno is not None
        if function.end_lineno - function.lineno + 1 <= MAX_LINES:
            continue
        found += [
            f"{function.name}: {name}"
            for name in sorted(FILLERS.intersection(names_bound(function)))
            if (function.name, name) not in PROMISED
        ]
    return found


WORDS = re.compile(rf"\b_*(?:{'|'.join(FILLERS | FUNCTION_FILLERS)})_*\b")
"""What a file has that has a filler."""


def fillers_below(folder: str) -> Iterator[str]:
    for path in sorted((ROOT / folder).rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        for one in fillers(ast.parse(source)) if WORDS.search(source) else ():
            yield f"{path.relative_to(ROOT)}: {one}"


@pytest.mark.parametrize("folder", FOLDERS)
def test_names_say_something(folder: str) -> None:
    assert not list(fillers_below(folder)), "call it what it is: reply, max_tokens, layouts, ..."


@pytest.mark.parametrize("folder", OPEN)
def test_open_folders_are_open(folder: str) -> None:
    assert any(fillers_below(folder)), f"{folder} is clean: move it to FOLDERS"


def test_every_folder_is_listed() -> None:
    parents = ("core", "plugins", "kernels")
    packages = {
        str(path.parent.relative_to(ROOT))
        for parent in parents
        for path in (ROOT / parent).glob("*/__init__.py")
    }
    assert packages == set(FOLDERS)


def test_fillers_are_found() -> None:
    body = "\n".join(f"    step_{number}()" for number in range(MAX_LINES))
    tree = ast.parse(f"def run(kept):\n    for told, reply in kept:\n        pass\n{body}")
    assert fillers(tree) == ["run: kept", "run: told"]
    assert fillers(ast.parse(f"def run(layouts):\n    reply = layouts\n{body}")) == []
    assert fillers(ast.parse("def run(kept):\n    return kept")) == []
    assert fillers(ast.parse("def _told():\n    pass")) == ["_told: the function"]

"""Files stay under 500 lines, functions under 80, and modules say what they are."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILE_LINES = 500
FUNCTION_LINES = 80
CORE_LINES = 75_000
LONG_FILES: dict[str, str] = {}
LONG_FUNCTIONS: dict[str, str] = {}
SOURCES = sorted(
    path
    for part in (
        "core",
        "plugins",
        "kernels",
        "contrib",
        "examples",
        "docs",
        "benchmarks",
        "tests/support",
    )
    for path in (ROOT / part).rglob("*.py")
    if "build" not in path.parts
)


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_budget(path: Path) -> None:
    text = path.read_text()
    tree = ast.parse(text)
    if name_of(path) not in LONG_FILES:
        assert text.count("\n") <= FILE_LINES
    long = [
        f"{node.name}: {node.end_lineno - node.lineno + 1} lines"
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno >= FUNCTION_LINES
        and f"{name_of(path)}:{node.name}" not in LONG_FUNCTIONS
    ]
    assert long == []
    if tree.body:
        assert ast.get_docstring(tree), "a module opens with what it is and what it does not know"


def test_core_is_small() -> None:
    """A feature is a plugin: it makes plugins/ longer, not core/."""
    files = (ROOT / "core").rglob("*.py")
    assert sum(path.read_text(encoding="utf-8").count("\n") for path in files) <= CORE_LINES

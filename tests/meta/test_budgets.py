"""Files stay under 500 lines, functions under 80, and modules say what they are."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILE_LINES = 500
FUNCTION_LINES = 80
CORE_LINES = 75_000
FOLDER_FILES = 25
ONE_FILE_EACH = {
    "core/dovetail/interfaces": "a file for each kind of plugin",
    "plugins/dovetail_testing/contracts": "a file for each kind of plugin",
    "plugins/dovetail_plugins/commands": "a file for each subcommand",
    "plugins/dovetail_plugins/load_formats": "a file for each format",
    "plugins/dovetail_plugins/model_types": "a file for each model type",
    "plugins/dovetail_plugins/models": "a file for each model family",
    "plugins/dovetail_plugins/quantization": "a file for each method",
    "plugins/dovetail_plugins/reasoning_parsers": "a file for each parser",
    "plugins/dovetail_plugins/tool_parsers": "a file for each parser",
}
"""Folders with more files, all of one sort."""
LONG_FILES: dict[str, str] = {}
LONG_FUNCTIONS: dict[str, str] = {}
PARTS = (
    *("core", "plugins", "kernels", "contrib", "examples", "docs", "benchmarks"),
    "tests/support",
)


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("part", PARTS)
def test_budget(part: str) -> None:
    paths = [path for path in sorted((ROOT / part).rglob("*.py")) if "build" not in path.parts]
    assert paths
    assert [f"{name_of(path)}: {fault}" for path in paths for fault in _excesses(path)] == []


def _excesses(path: Path) -> Iterator[str]:
    """Yield what is too long in a file, and that it does not open with what it is."""
    text = path.read_text()
    tree = ast.parse(text)
    if name_of(path) not in LONG_FILES and text.count("\n") > FILE_LINES:
        yield f"{text.count(chr(10))} lines"
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            and node.end_lineno is not None
            and node.end_lineno - node.lineno >= FUNCTION_LINES
            and f"{name_of(path)}:{node.name}" not in LONG_FUNCTIONS
        ):
            yield f"{node.name}: {node.end_lineno - node.lineno + 1} lines"
    if tree.body and not ast.get_docstring(tree):
        yield "a module opens with what it is and what it does not know"


def test_folders_have_few_files() -> None:
    """In a long list of files nobody finds anything: files about one subject make a folder."""
    sizes = Counter(
        name_of(path.parent)
        for part in ("core", "plugins", "kernels")
        for path in (ROOT / part).rglob("*.py")
        if path.name != "__init__.py"
    )
    full = {folder for folder, files in sizes.items() if files > FOLDER_FILES}
    assert full == set(ONE_FILE_EACH)


def test_core_is_small() -> None:
    """A feature is a plugin: it makes plugins/ longer, not core/."""
    files = (ROOT / "core").rglob("*.py")
    assert sum(path.read_text(encoding="utf-8").count("\n") for path in files) <= CORE_LINES

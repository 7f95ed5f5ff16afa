"""Tests are where one looks for them; the kit in the wheel holds only what its contracts use."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CORE = ROOT / "core" / "dovetail"
TESTS = ROOT / "tests"
KIT = "dovetail_testing"
WITH_PLUGINS = {"cli", "joining"}
"""Folders of core whose tests need plugins, and are in tests/plugins."""
ENTRANCES = ("contract", "plugin", "check")
"""What authors of plugins and `dovetail plugins check` use of the kit beside its contracts."""


def test_every_folder_of_core_has_its_folder_of_tests() -> None:
    folders = {path.parent.name for path in CORE.glob("*/__init__.py")}
    files = TESTS.glob("core/*/**/test_*.py")
    tested = {path.relative_to(TESTS / "core").parts[0] for path in files}
    assert tested == folders - WITH_PLUGINS


def kit_modules() -> dict[str, Path]:
    """Return the kit's modules by their names."""
    files = (ROOT / "plugins" / "dovetail_testing").rglob("*.py")
    names = {
        ".".join(path.relative_to(ROOT / "plugins").with_suffix("").parts): path for path in files
    }
    return {name.removesuffix(".__init__"): path for name, path in names.items()}


def named_in(path: Path, modules: dict[str, Path]) -> set[str]:
    """Return the modules that a file imports, or names in a text (targets of plugins)."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found |= set(re.findall(rf"{re.escape(KIT)}[\w.]*\w", node.value))
    return found & modules.keys()


def test_the_kit_holds_what_its_contracts_reach() -> None:
    """What only the tests of this repository use belongs in tests/support."""
    modules = kit_modules()
    reached: set[str] = set()
    waiting = [name for name in modules if name.startswith(f"{KIT}.contracts")]
    waiting += [f"{KIT}.{name}" for name in ENTRANCES]
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting += named_in(modules[name], modules)
    assert modules.keys() - reached - {KIT} == set()


def test_no_shipped_module_imports_what_only_tests_share() -> None:
    wrong = [
        path.relative_to(ROOT).as_posix()
        for part in ("core", "plugins", "kernels")
        for path in (ROOT / part).rglob("*.py")
        if re.search(r"^\s*(from|import) (support|tests)\b", path.read_text(), re.MULTILINE)
    ]
    assert wrong == []

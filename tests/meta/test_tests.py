"""Tests are where one looks for them; the kit in the wheel holds only what its contracts use."""

from __future__ import annotations

import ast
import contextlib
import re
from pathlib import Path

import pytest

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
    reached |= {name.rpartition(".")[0] for name in reached}  # a module is imported with its folder
    assert modules.keys() - reached - {KIT} == set()


def test_no_shipped_module_imports_what_only_tests_share() -> None:
    wrong = [
        path.relative_to(ROOT).as_posix()
        for part in ("core", "plugins", "kernels")
        for path in (ROOT / part).rglob("*.py")
        if re.search(r"^\s*(from|import) (support|tests)\b", path.read_text(), re.MULTILINE)
    ]
    assert wrong == []


def _cannot_fail(test: ast.expr) -> bool:
    """Return whether an assertion ends in `or NAME` or `or len(...) == N`, which is nearly always
    true. A name that says what it is (is_, has_) is a condition."""
    if not isinstance(test, ast.BoolOp) or not isinstance(test.op, ast.Or):
        return False
    last = test.values[-1]
    if isinstance(last, ast.Name):
        return not last.id.startswith(("is_", "has_"))
    if not isinstance(last, ast.Compare) or not isinstance(last.ops[0], ast.Eq):
        return False
    return isinstance(last.left, ast.Call) and ast.unparse(last.left.func) == "len"


def test_no_assertion_has_a_way_out() -> None:
    found = [
        f"{path.relative_to(TESTS)}:{node.lineno}"
        for path in sorted(TESTS.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Assert) and _cannot_fail(node.test)
    ]
    assert found == []


@pytest.mark.parametrize("source", ["a == b or kind", "a == b or len(parts) == 2"])
def test_ways_out_are_found(source: str) -> None:
    (statement,) = ast.parse(f"assert {source}").body
    assert isinstance(statement, ast.Assert) and _cannot_fail(statement.test)


def _is_private(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Attribute)
        and node.attr.startswith("_")
        and not node.attr.endswith("__")
        and not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"))
    )


def _num_private(node: ast.AST | None) -> int:
    """Return how many private attributes are read on the way to a value: `a._b.c[0]._d` has 2."""
    count = 0
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        count += _is_private(node)
        node = node.func if isinstance(node, ast.Call) else node.value
    return count


def _chains(source: str) -> list[int]:
    """Return the lines with a chain of private attributes, also in the scripts that it holds."""
    nodes = list(ast.walk(ast.parse(source)))
    lines = [n.lineno for n in nodes if isinstance(n, ast.Attribute) and _num_private(n) > 1]
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "._" in node.value:
            with contextlib.suppress(SyntaxError, ValueError):  # it is no script
                lines += [node.lineno for _ in _chains(node.value)]
    return lines


def test_a_path_of_private_attributes_is_written_in_support_alone() -> None:
    """A test asks support/inside.py for what is deep inside, so that a new name is set there."""
    found = [
        f"{path.relative_to(TESTS)}:{line}"
        for path in sorted(TESTS.rglob("*.py"))
        if path.relative_to(TESTS).parts[0] != "support" and path.name != "test_tests.py"
        if "._" in (source := path.read_text(encoding="utf-8"))
        for line in _chains(source)
    ]
    assert found == []


@pytest.mark.parametrize(
    "source", ["a._b._c", "a._b.c._d()", "a._b(1)[0]._c = 2", "SCRIPT = '''\nx._a._b\n'''"]
)
def test_chains_are_found(source: str) -> None:
    assert _chains(source) == [1]


@pytest.mark.parametrize("source", ["a._b.c", "self._a._b", "f(a._b)._c", "a.__init__.__name__"])
def test_single_steps_are_no_chains(source: str) -> None:
    assert _chains(source) == []

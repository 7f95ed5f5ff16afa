"""Plugin files written for another engine: how they are recognised, and what runs them.

They import that engine's modules. A plugin of kind file_importer with the module's name runs them.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

Importer = Callable[[ModuleType, Path], Mapping[str, Any] | None]
"""Runs the file at a path in the module made for it, and registers its plugins. Returns the
replacements for the file's own classes when they are chosen by name (None: none)."""

PACKAGES = {"vllm": "dovetail-vllm-compat"}
"""Packages with importers, by the module that files import."""


def imported_roots(path: Path) -> set[str]:
    """Return the top-level modules that a file imports anywhere; none if it is not Python."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return set()
    return {name.partition(".")[0] for node in ast.walk(tree) for name in _modules(node)}


def _modules(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
        yield node.module


def package_advice(roots: set[str]) -> str | None:
    """Return what to install for files that import these modules, or None."""
    packages = sorted(roots & set(PACKAGES))
    if not packages:
        return None
    package = PACKAGES[packages[0]]
    return (
        f'files that import "{packages[0]}" need the package {package}: '
        f"run `pip install {package}` "
        f"(in a checkout `pip install ./contrib/{package.removeprefix('dovetail-')}`)."
    )

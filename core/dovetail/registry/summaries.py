"""One-line summaries of plugins, read from their source text, so that help imports no plugin.

Finds `summary="..."` in the Value or the `info` that an entry's target names, through base classes
and `from x import y`. A summary that is not plain text is left out; `describe_entry` imports the
plugin and has it.
"""

from __future__ import annotations

import ast
from functools import cache
from importlib import util
from pathlib import Path

from dovetail.registry.entry import Entry

_HOPS = 6
"""The maximum number of base classes and imports to follow."""


def summary_of(entry: Entry) -> str:
    """Return the summary in the entry's source, or "". Imports nothing."""
    return _stated(entry.module, entry.attribute, _HOPS)


def _stated(module: str, name: str, hops: int) -> str:
    tree = _tree(module)
    if tree is None or hops == 0:
        return ""
    for node in tree.body:
        match node:
            case ast.ClassDef() if node.name == name:
                return _of_class(module, node, hops)
            case ast.Assign() | ast.AnnAssign() if name in _targets(node):
                return _of_call(node.value)
            case ast.ImportFrom(module=str(source), level=0):
                for alias in node.names:
                    if (alias.asname or alias.name) == name:
                        return _stated(source, alias.name, hops - 1)
    return ""


def _of_class(module: str, node: ast.ClassDef, hops: int) -> str:
    for line in node.body:
        if isinstance(line, ast.Assign | ast.AnnAssign) and "info" in _targets(line):
            return _of_call(line.value)
    bases = [base.id for base in node.bases if isinstance(base, ast.Name)]
    return next(filter(None, (_stated(module, base, hops - 1) for base in bases)), "")


def _of_call(value: ast.expr | None) -> str:
    """Return the keyword `summary` of a call, if it is plain text."""
    for keyword in value.keywords if isinstance(value, ast.Call) else ():
        if keyword.arg == "summary" and isinstance(keyword.value, ast.Constant):
            return str(keyword.value.value)
    return ""


def _targets(node: ast.Assign | ast.AnnAssign) -> list[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return [target.id for target in targets if isinstance(target, ast.Name)]


@cache
def _tree(module: str) -> ast.Module | None:
    path = _source_of(module)
    if path is None:
        return None
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError):
        return None  # an unreadable file is reported when the plugin is selected


def _source_of(module: str) -> Path | None:
    """Return the file of a module. Only the outermost package is looked up; none is imported."""
    if module.endswith(".py"):
        return Path(module)
    outermost, *rest = module.split(".")
    try:
        spec = util.find_spec(outermost)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    if not rest:
        return Path(spec.origin) if spec.origin else None
    for folder in spec.submodule_search_locations or ():
        inner = Path(folder, *rest)
        for path in (inner.with_suffix(".py"), inner / "__init__.py"):
            if path.is_file():
                return path
    return None

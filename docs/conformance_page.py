"""The page of the conformance kit: every clause, and what it demands."""

from __future__ import annotations

import ast
from pathlib import Path

CONTRACTS = Path(__file__).parents[1] / "plugins" / "dovetail_testing" / "contracts"
HEAD = """# What the conformance kit demands

{note}

`dovetail plugins check KIND:NAME` runs the clauses of `plugin` and those of the kind, and those of
a capability where the plugin claims it; [write a plugin](../tutorials/write_a_plugin.md) shows how.
A finding names its clause. A clause that a plugin cannot keep goes into its `expected_failures`,
with the reason.
"""


def conformance_page(note: str) -> str:
    """Return the page."""
    parts = [HEAD.format(note=note)]
    for file in sorted(CONTRACTS.glob("test_*.py")):
        rows = [f"| `{name}` | {text} |" for name, text in clauses(file)]
        if rows:
            kind = file.stem.removeprefix("test_")
            parts.append(
                "\n".join([f"## {kind}\n", "| clause | what it demands |", "|---|---|", *rows])
            )
    return "\n\n".join(part.strip() for part in parts) + "\n"


def clauses(file: Path) -> list[tuple[str, str]]:
    """Return the name and the sentences of each clause of a file, in order."""
    found = [
        node
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]
    return [(node.name, _text(node)) for node in sorted(found, key=lambda node: node.lineno)]


def _text(node: ast.FunctionDef) -> str:
    """Return a clause's docstring in one line, as a cell of a table."""
    return " ".join((ast.get_docstring(node) or "").split()).replace("|", "\\|")

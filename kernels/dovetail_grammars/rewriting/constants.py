"""Pass 5: reduces a node with `enum` or `const` to the values that its other keywords allow.

Source: https://json-schema.org/draft/2020-12/json-schema-validation (6.1.2, 6.1.3).
"""

from __future__ import annotations

from typing import Any

from dovetail_grammars.rewriting.automaton import Undecided
from dovetail_grammars.rewriting.context import Context
from dovetail_grammars.rewriting.tree import ORIGIN, Schema


def only_constants(node: Schema, context: Context) -> Any:
    """Return a node with only its constants, if their validity can be decided."""
    if "enum" not in node and "const" not in node:
        return node
    given = "const" if "const" in node else "enum"
    values = [node["const"]] if given == "const" else node["enum"]
    others = {keyword: said for keyword, said in node.items() if keyword != given}
    try:
        valid = [value for value in values if context.meets(value, others)]
    except Undecided:
        return node
    root = {"$defs": node["$defs"]} if "$defs" in node else {}
    return {ORIGIN: node.get(ORIGIN, ""), "enum": valid, **root} if valid else False

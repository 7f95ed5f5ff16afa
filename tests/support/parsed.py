"""Sources as trees, for tests of the source: each file is parsed and walked once."""

from __future__ import annotations

import ast
from functools import lru_cache

FEW = 8
"""Files whose trees stay: all of them would take a gigabyte."""


@lru_cache(FEW)
def tree_of(source: str) -> ast.Module:
    """Return the tree of a source."""
    return ast.parse(source)


@lru_cache(FEW)
def nodes_of(source: str) -> list[ast.AST]:
    """Return all nodes of a source, as ast.walk yields them."""
    return list(ast.walk(tree_of(source)))

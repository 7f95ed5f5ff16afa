"""Lists of different constants, in any order, as rules: one for every set of those that are left.

Source: https://json-schema.org/draft/2020-12/json-schema-validation (6.4.3, uniqueItems).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dovetail.structured_output.regex import Cat, Node, Or

MAX_DIFFERENT = 7
"""Each more doubles the rules, and with eight a library takes seconds."""


def constants_of(node: Mapping[str, Any]) -> list[Any] | None:
    """Return the constants that the items of a list are, None if they are anything else."""
    items = node.get("items")
    found = items.get("enum") if isinstance(items, Mapping) and "prefixItems" not in node else None
    return found if isinstance(found, list) and len(found) <= MAX_DIFFERENT else None


def different(
    values: Sequence[Node],
    comma: Node,
    least: int,
    most: int | None,
    share: Callable[[Node], Node],
) -> Node:
    """Return lists of some of these values, none twice, Or(()) if there are none. `share` makes a
    part a rule of its own."""
    most = len(values) if most is None else min(most, len(values))
    known: dict[frozenset[int], Node] = {}

    def rest(left: frozenset[int]) -> Node:
        """Return what may follow once all but these were written."""
        if left not in known:
            count = len(values) - len(left)
            parts = [Cat(())] if count >= least else []
            for index in sorted(left) if count < most else ():
                head = values[index] if not count else Cat((comma, values[index]))
                parts.append(Cat((head, rest(left - {index}))))
            known[left] = share(Or(tuple(parts)))
        return known[left]

    return rest(frozenset(range(len(values)))) if most >= least else Or(())

"""A pytest plugin that makes the conformance kit run given clauses of given plugins only.

`dovetail plugins check A B --clause X --clause Y` runs every clause on every plugin; of plugins
that are wrong on purpose only the clause that each breaks is of interest. Loaded with -p.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable

import pytest

from dovetail.registry import Entry
from dovetail_testing.plugin import clause_of

VARIABLE = "KIT_PAIRS"


def variables(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return what the kit's process needs in its environment. A pair is KIND:ID and a clause,
    whose name may be empty: all of them."""
    return {
        "PYTEST_ADDOPTS": f"-p {__name__} -p support.warm_kit",
        VARIABLE: json.dumps(list(pairs)),
    }


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what no pair names."""
    wanted = {tuple(pair) for pair in json.loads(os.environ[VARIABLE])}
    left_out = [item for item in items if not _names(item) & wanted]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if _names(item) & wanted]


def _names(item: pytest.Item) -> set[tuple[str, str]]:
    """Return the pairs that ask for an item; none for a clause without a plugin."""
    callspec = getattr(item, "callspec", None)
    entry = callspec.params.get("entry") if callspec else None
    if not isinstance(entry, Entry):
        return set()
    plugin = f"{entry.kind}:{entry.id}"
    return {(plugin, clause_of(item)), (plugin, "")}

"""Samples of long lists of tests: `make test` runs a sample, `make test-full` (TESTS=full) all.

A test marked `sampled` has several parameters, and more combinations than a run needs. The sample
has every pair of values of two parameters that occurs in any combination, as pairwise testing has
(Cohen et al., The AETG system, 1997); with `sampled(1)` it has every value, each about as often.
With `sampled(every=4)` it is every fourth case: of a long list whose cases are of one kind. It is
the same in every run. A combination that once failed is a test of its own, outside the list.

A test marked `full_only` costs much and tells little that others do not: `make test-full` runs it.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations

import pytest

IS_FULL = os.environ.get("TESTS") == "full"
MARK, FEW, FULL_ONLY = "sampled", "few_isa", "full_only"
Combination = Mapping[str, int]
"""A number for the value of each parameter."""


def sample_of(all_of_them: int, some: int) -> int:
    """Return how many of them a run tries."""
    return all_of_them if IS_FULL else some


def sample(cases: Sequence[Combination], strength: int = 2) -> list[int]:
    """Return which combinations to try, so that all groups of `strength` values occur that occur in
    `cases`. Of those with as many new ones, the next has the values that are used least."""
    missing = [set(combinations(sorted(case.items()), min(strength, len(case)))) for case in cases]
    used: Counter[tuple[str, int]] = Counter()
    chosen = []
    while any(missing):
        best = max(
            range(len(cases)),
            key=lambda i: (len(missing[i]), -sum(used[value] for value in cases[i].items())),
        )
        chosen.append(best)
        used.update(cases[best].items())
        found = set(missing[best])
        for groups in missing:
            groups -= found
    return sorted(chosen)


def left_out(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Return the tests that this run leaves out."""
    if IS_FULL:
        return []
    left = [item for item in items if item.get_closest_marker(FULL_ONLY)]
    for cases in _marked(items, MARK):
        mark = cases[0].get_closest_marker(MARK)
        assert mark is not None
        chosen = set(_chosen(cases, *mark.args, **mark.kwargs))
        left += [case for number, case in enumerate(cases) if number not in chosen]
    return left


def _chosen(cases: Sequence[pytest.Function], strength: int = 2, every: int = 1) -> Sequence[int]:
    """Return the numbers of the cases that a run tries."""
    if every > 1:
        return range(0, len(cases), every)
    return sample([{k: id(v) for k, v in c.callspec.params.items()} for c in cases], strength)


def left_out_of_every(number: int, items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Return all but every `number`-th of the combinations of each test marked `few_isa`."""
    return [case for cases in _marked(items, FEW) for i, case in enumerate(cases) if i % number]


def _marked(items: Sequence[pytest.Item], mark: str) -> list[list[pytest.Function]]:
    """Return the combinations of each test with a mark."""
    functions: dict[str, list[pytest.Function]] = {}
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker(mark):
            functions.setdefault(item.nodeid.partition("[")[0], []).append(item)
    return list(functions.values())

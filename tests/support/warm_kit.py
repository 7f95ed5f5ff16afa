"""A pytest plugin (-p): the conformance kit forks its engines and ranks (see warm_children)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.warm_children import warm_children


@pytest.fixture(scope="session", autouse=True)
def warm() -> Iterator[None]:
    """Fork children of this process from one that has the imports."""
    with warm_children():
        yield

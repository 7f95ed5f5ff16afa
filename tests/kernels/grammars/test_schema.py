"""Walking a JSON schema: each keyword that holds schemas is followed, in every draft's spelling."""

from __future__ import annotations

import pytest

from dovetail_grammars.schema import closed

OBJECT = {"properties": {"a": {}}}
CLOSED = OBJECT | {"additionalProperties": False}


@pytest.mark.parametrize("keyword", ["items", "not", "additionalItems", "unevaluatedItems"])
def test_closing_follows_single_schemas(keyword: str) -> None:
    assert closed({keyword: OBJECT}) == {keyword: CLOSED}


@pytest.mark.parametrize("keyword", ["anyOf", "prefixItems", "items"])
def test_closing_follows_lists_of_schemas(keyword: str) -> None:
    assert closed({keyword: [OBJECT, True]}) == {keyword: [CLOSED, True]}


@pytest.mark.parametrize("keyword", ["$defs", "patternProperties", "dependencies"])
def test_closing_follows_schemas_by_name(keyword: str) -> None:
    assert closed({keyword: {"x": OBJECT, "y": ["a"]}}) == {keyword: {"x": CLOSED, "y": ["a"]}}

"""Prompts of LLM.generate: text, token ids, or either in a mapping, one or many."""

from __future__ import annotations

from typing import Any

import pytest

from dovetail.errors import RequestError
from dovetail.llm_prompts import listed


@pytest.mark.parametrize(
    ("prompts", "wanted"),
    [
        ("a", ["a"]),
        ([1, 2], [[1, 2]]),
        ({"prompt": "a"}, ["a"]),
        ({"prompt_token_ids": [1, 2]}, [[1, 2]]),
        (["a", [1], {"prompt": "b"}, {"prompt_token_ids": [2]}], ["a", [1], "b", [2]]),
        ([], []),
    ],
)
def test_every_spelling_is_taken(prompts: Any, wanted: list[Any]) -> None:
    assert listed(prompts) == wanted


@pytest.mark.parametrize(
    "wrong", [{}, {"text": "a"}, {"prompt": "a", "prompt_token_ids": [1]}, [{"prompts": "a"}]]
)
def test_other_keys_are_named(wrong: Any) -> None:
    with pytest.raises(RequestError, match="is not supported"):
        listed(wrong)

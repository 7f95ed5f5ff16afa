"""Prompts of LLM.generate: text, token ids, or either in a mapping, one or many."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from dovetail.errors import RequestError
from dovetail.llm.prompts import listed
from dovetail.multimodal import given
from dovetail.multimodal.prompt import MediaPrompt


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


def shown(image: Any) -> dict[str, Any]:
    return {"prompt": "a", "multi_modal_data": {"image": image}}


def keys_of(prompts: Any) -> list[str]:
    found = listed(prompts)
    assert all(isinstance(one, MediaPrompt) for one in found)
    return [one.media[0].key for one in found]  # type: ignore[union-attr]


def test_what_many_prompts_show_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Any] = []
    found = given._key
    monkeypatch.setattr(given, "_key", lambda *told: (read.append(told), found(*told))[1])
    image = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
    first, second, other, same = keys_of(
        [shown(image), shown(image), shown(image + 1), shown(image.copy())]
    )
    assert first == second == same != other
    assert len(read) == 3
    image += 1  # another call looks again
    assert keys_of(shown(image)) == [other]


class Made(Sequence[Any]):
    """Prompts whose pictures are made when they are asked for, and are nobody's afterwards."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, at: Any) -> Any:
        if at >= len(self):
            raise IndexError
        frames = np.full((2, 4, 4, 3), at, dtype=np.uint8)
        return {"prompt": "a", "multi_modal_data": {"video": (frames, {"fps": 2.0})}}


def test_objects_that_end_give_their_identity_to_no_other() -> None:
    assert len(set(keys_of(Made()))) == 20


@pytest.mark.parametrize(
    "change",
    [
        lambda image: image.T,
        lambda image: image.astype(np.int16),
        lambda image: image[:, ::2],
        lambda image: image[:0],
    ],
)
def test_a_key_depends_on_layout_and_numbers(change: Any) -> None:
    image = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
    assert keys_of(shown(image)) != keys_of(shown(change(image)))
    assert keys_of(shown(change(image))) == keys_of(shown(np.array(change(image))))

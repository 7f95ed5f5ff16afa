"""A suffix becomes the tokens by which a family of code models asks for a middle."""

from __future__ import annotations

import pytest

from dovetail_plugins.apis._infill import LAYOUTS, InfillTokens
from dovetail_testing.fakes.async_engine import FakeAsyncEngine, FakeTokenizer
from support.infill_tokenizer import WithMarkers
from support.serving import app_for, complete


def engine_of(tokenizer: FakeTokenizer) -> FakeAsyncEngine:
    engine = FakeAsyncEngine()
    engine.tokenizer = tokenizer
    return engine


@pytest.mark.parametrize("bos", [None, 1])
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.prefix)
def test_each_family_is_asked_in_its_tokens(layout: InfillTokens, bos: int | None) -> None:
    tokenizer = WithMarkers(layout, bos)
    app, engine = app_for(engine=engine_of(tokenizer))
    answer = complete(app, prompt="ab", suffix="yz", stop_token_ids=[7])
    assert answer.status_code == 200, answer.text
    _, params, asked = engine.asked[0]
    before = [tokenizer.id_of(layout.prefix), *map(ord, "ab")]
    after = [tokenizer.id_of(layout.suffix), *map(ord, "yz")]
    parts = [*after, *before] if layout.is_suffix_first else [*before, *after]
    middle = [tokenizer.id_of(layout.middle)] if layout.middle else []
    assert list(asked["prompt"]) == [*([bos] if bos else []), *parts, *middle]
    assert params.stop_token_ids == (7, *map(tokenizer.id_of, layout.ends))
    complete(app, prompt=[97], suffix="z", ignore_eos=True)
    assert 97 in engine.asked[1][2]["prompt"] and engine.asked[1][1].stop_token_ids == ()


def test_a_model_without_such_tokens_is_refused() -> None:
    app, engine = app_for()
    error = complete(app, suffix="x").json()["error"]
    assert error["param"] == "suffix" and "cannot fill in the middle" in error["message"]
    assert not engine.asked
    assert complete(app, suffix="").status_code == 200


@pytest.mark.parametrize(("field", "value"), [("echo", True), ("truncate_prompt_tokens", 5)])
def test_what_a_suffix_cannot_be_combined_with(field: str, value: object) -> None:
    app, _ = app_for(engine=engine_of(WithMarkers(LAYOUTS[0])))
    assert complete(app, suffix="x", **{field: value}).json()["error"]["param"] == field

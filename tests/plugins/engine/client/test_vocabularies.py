"""Vocabularies: what engines tell of adapters decides which ids and which tokenizer a name has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from dovetail.config.rules.selections import select
from dovetail.engine.client.text.vocabularies import Vocabularies
from dovetail.errors import RequestError
from dovetail.interfaces.data.adapter_spec import AdapterSource
from dovetail_testing.fakes.adapters import fake_room
from dovetail_testing.fakes.async_engine import FakeTokenizer, fake_spec
from dovetail_testing.tiny.models import write_tiny_tokenizer

pytest.importorskip("dovetail_plugins")  # the tokenizer of a folder is its


def made(**room: Any) -> Vocabularies:
    tokenizer = select("tokenizer", "hf", where="a test", options={})
    spec = msgspec.structs.replace(fake_spec(room=fake_room(**room)), tokenizer=tokenizer)
    return Vocabularies(spec, FakeTokenizer())


def source(name: str, **fields: Any) -> AdapterSource:
    return AdapterSource(name=name, path="/adapters", key=f"{name}#1", **fields)


def test_without_room_nobody_asks_for_adapters() -> None:
    for found in (made(max_added_tokens=0), Vocabularies(fake_spec(), FakeTokenizer())):
        assert not found.can_grow and found.knows("any")
        found.note([source("a", num_added_tokens=3)])
        assert found.of("a") is found.own


@pytest.mark.parametrize(("stated", "wanted"), [((), ()), ((3,), (3,)), ((3, 1), (3, 1))])
def test_the_tokenizers_end_ends_answers_too(
    stated: tuple[int, ...], wanted: tuple[int, ...]
) -> None:
    spec, tokenizer = fake_spec(), FakeTokenizer()
    model = msgspec.structs.replace(spec.run.model, eos_token_ids=stated)
    spec = msgspec.structs.replace(spec, run=msgspec.structs.replace(spec.run, model=model))
    own = tokenizer.facts().eos_token_id
    assert own is not None
    ends = Vocabularies(spec, tokenizer).own.eos_token_ids
    assert ends == tuple(dict.fromkeys((*wanted, own)))


def test_ids_go_on_from_the_models() -> None:
    found = made(max_added_tokens=8)
    assert not found.knows("a") and found.knows("")
    found.note([source("a", num_added_tokens=3), source("b")])
    assert found.knows("a") and found.knows("b")
    size = found.own.num_tokens
    assert found.of("a").num_tokens == size + 3
    assert found.of("a").tokenizer is found.own.tokenizer
    assert found.of("b") is found.own
    found.note([source("b")])
    assert found.of("a") is found.own and not found.knows("a")


def test_a_tokenizer_is_loaded_once(tmp_path: Path) -> None:
    found, folder = made(max_added_tokens=8), write_tiny_tokenizer(tmp_path)
    told = source("a", num_added_tokens=3, has_tokenizer=True)
    told = msgspec.structs.replace(told, path=str(folder))
    assert found.is_new([told])
    found.note([told])
    assert not found.is_new([told])
    first = found.of("a")
    assert first.tokenizer is not found.own.tokenizer
    assert first.tokenizer_path == str(folder)
    assert first.tokenizer.facts().eos_token_id in first.eos_token_ids
    assert set(found.own.eos_token_ids) <= set(first.eos_token_ids)
    found.note([told, source("b")])
    assert found.of("a") is first
    found.note([msgspec.structs.replace(told, key="a#2")])
    assert found.of("a") is not first


def test_a_tokenizer_that_is_gone_is_told_to_whoever_asks() -> None:
    found = made(max_added_tokens=8)
    found.note([source("a", num_added_tokens=3, has_tokenizer=True), source("b")])
    assert found.of("b") is found.own
    with pytest.raises(RequestError, match="/adapters"):
        found.of("a")

"""Whatever a text holds, reading it gives a value or one error."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import strategies as st

from dovetail.config.checkpoint.adapter_config import CONFIG
from dovetail.config.checkpoint.json_files import read_json
from dovetail.errors import ConfigError, RequestError
from dovetail.json_values import InvalidJson, json_struct, json_value
from dovetail_plugins.apis.audio.form import _json_fields
from support.drawn import given

DEEP = 200_000
FAULTS: dict[str, bytes] = {
    "deep list": b"[" * DEEP,
    "deep object": b'{"a":' * DEEP,
    "not UTF-8": b'{"a": "\xff\xfe"}',
    "nothing": b"",
    "half": b'{"a": ',
    "UTF-16 cut": b"\xff\xfe{",
}


@pytest.mark.parametrize("name", FAULTS)
def test_every_fault_is_one_error(name: str) -> None:
    for read in (json_value, json_struct):
        with pytest.raises(InvalidJson, match=r"^(is|has) "):
            read(FAULTS[name])


def test_a_number_too_long_for_python_is_a_fault() -> None:
    with pytest.raises(InvalidJson, match="cannot be read"):
        json_value("9" * 5000)


@given(st.binary() | st.text())
def test_any_text_has_a_value_or_that_error(data: str | bytes) -> None:
    for read in (json_value, json_struct):
        try:
            read(data)
        except InvalidJson as error:
            assert str(error)


def test_a_good_text_is_read_as_the_libraries_read_it() -> None:
    text = '{"a": [1, 2.5, "é", null, true]}'
    assert json_value(text) == json_struct(text.encode()) == json.loads(text)
    assert json_struct(b"[1]", list[int]) == msgspec.json.decode(b"[1]", type=list[int])
    with pytest.raises(InvalidJson):
        json_struct(b'["a"]', list[int])


@pytest.mark.parametrize("name", FAULTS)
def test_files_and_bodies_like_that_are_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / CONFIG).write_bytes(FAULTS[name])
    with pytest.raises(ConfigError, match="cannot be read"):
        read_json(tmp_path / CONFIG)
    with pytest.raises(RequestError, match="the body") as caught:
        _json_fields(FAULTS[name])
    assert caught.value.status == 400

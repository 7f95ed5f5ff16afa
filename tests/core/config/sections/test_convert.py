"""Values of flags: every shape from text, YAML values and Python, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import strategies as st

from dovetail.config.sections.convert import from_value, human_int
from dovetail.config.sections.field import Flag, Meta
from dovetail.errors import ConfigError
from support.drawn import given


def make(value_type: str, *, is_optional: bool = False, default: Any = None, **meta: Any) -> Flag:
    return Flag(
        name="some_flag",
        group="ModelConfig",
        value_type=value_type,
        is_optional=is_optional,
        default=default,
        meta=Meta(help="", **meta),
    )


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1k", 1000),
        ("1K", 1024),
        ("25.6k", 25600),
        ("2m", 2_000_000),
        ("2M", 2 << 20),
        ("1g", 10**9),
        ("3G", 3 << 30),
        ("4096", 4096),
        ("-1", -1),
        ("1_000", 1000),
        ("0.5t", 5 * 10**11),
    ],
)
def test_human_int(text: str, value: int) -> None:
    assert human_int(text) == value


@pytest.mark.parametrize("text", ["1.5K", "1.2345k", "k", "1kk", "1e3", "", "0x10", "1.5"])
def test_human_int_refuses(text: str) -> None:
    with pytest.raises(ValueError):
        human_int(text)


@given(st.integers(-(10**12), 10**12))
def test_human_int_round_trip(number: int) -> None:
    assert human_int(str(number)) == number
    assert human_int(f"{number}k") == number * 1000
    assert human_int(f"{number}K") == number * 1024


@pytest.mark.parametrize(
    ("shape", "text", "value"),
    [
        ("bool", "true", True),
        ("bool", "False", False),
        ("bool", "0", False),
        ("int", "4k", 4000),
        ("float", "0.25", 0.25),
        ("float", "1e-3", 0.001),
        ("str", "null", "null"),
        ("str", "", ""),
        ("list", "a,b , c", ("a", "b", "c")),
        ("list", '["a,b", "c"]', ("a,b", "c")),
        ("list", "", ()),
        ("json", '{"a": [1, {"b": null}]}', {"a": [1, {"b": None}]}),
    ],
)
def test_text(shape: str, text: str, value: Any) -> None:
    found = from_value(make(shape), text)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("shape", "given_value", "value"),
    [
        ("bool", False, False),
        ("bool", "off", False),
        ("int", 0, 0),
        ("int", 4.0, 4),
        ("float", 1, 1.0),
        ("float", "1e-3", 0.001),
        ("str", 16, "16"),
        ("list", ["a", 1], ("a", "1")),
        ("list", [], ()),
        ("list", "x", ("x",)),
        ("json", {"a": 0}, {"a": 0}),
        ("json", {}, {}),
    ],
)
def test_from_value(shape: str, given_value: Any, value: Any) -> None:
    assert from_value(make(shape), given_value) == value


@pytest.mark.parametrize(
    ("shape", "value"),
    [
        ("bool", 2),
        ("bool", "maybe"),
        ("int", True),
        ("int", 1.5),
        ("int", [1]),
        ("float", "nan"),
        ("float", float("inf")),
        ("float", True),
        ("str", ["a"]),
        ("str", False),
        ("list", {"a": 1}),
        ("list", [["a"]]),
        ("list", '["a"'),
        ("json", [1]),
        ("json", 3),
        ("int", None),
    ],
)
def test_wrong_values_name_the_flag(shape: str, value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        from_value(make(shape), value)
    assert caught.value.where == "--some-flag"


@pytest.mark.parametrize("value", [None, "none", "None", "null"])
def test_null_is_none_where_the_flag_allows_it(value: Any) -> None:
    assert from_value(make("int", is_optional=True), value) is None
    assert from_value(make("json", default={}), value) == {}
    with pytest.raises(ConfigError, match="is not a whole number"):
        from_value(make("int"), value)


def test_null_among_words() -> None:
    assert from_value(make("str", is_optional=True), "None") == "None"
    assert from_value(make("str", is_optional=True, kind="quantization"), "None") is None
    assert from_value(make("str", is_optional=True, kind="quantization"), "none") == "none"
    assert from_value(make("list", default=()), None) == ()
    assert from_value(make("list", default=()), "none") == ("none",)
    with pytest.raises(ConfigError, match="null is not a list"):
        from_value(make("list", default=("*",)), None)


def test_words_stand_for_values() -> None:
    flag = make("int", is_optional=True, words={"auto": None})
    assert from_value(flag, "auto") is None


@pytest.mark.parametrize(("value", "is_fine"), [(0, False), (1, True), (9, True), (10, False)])
def test_bounds(value: int, is_fine: bool) -> None:
    flag = make("int", ge=1, le=9)
    if is_fine:
        assert from_value(flag, value) == value
        return
    with pytest.raises(ConfigError, match="from 1 to 9"):
        from_value(flag, value)


def test_secret_values_stay_out_of_errors() -> None:
    with pytest.raises(ConfigError) as caught:
        from_value(make("list", secret=True), {"sk-very-secret": 1})
    assert "sk-very-secret" not in str(caught.value)

"""Words, JSON and YAML values become options; errors name the option."""

from __future__ import annotations

from typing import Any

import pytest

from dovetail.errors import ConfigError
from dovetail.registry.options import as_text, describe_options, given_options, options_for
from support.sample_plugins import Good


@pytest.mark.parametrize(
    ("given", "field", "value"),
    [
        ({"weight": "2"}, "weight", 2.0),
        ({"weight": 3}, "weight", 3.0),
        ({"limit": "12"}, "limit", 12),
        ({"limit": "null"}, "limit", None),
        ({"limit": None}, "limit", None),
        ({"is_strict": "true"}, "is_strict", True),
        ({"is-strict": "0"}, "is_strict", False),
        ({"mode": "down"}, "mode", "down"),
        ({"names": '["a", "b"]'}, "names", ("a", "b")),
        ({"names": ["a"]}, "names", ("a",)),
        ({"table": '{"a": 1}'}, "table", {"a": 1}),
    ],
)
def test_values(given: dict[str, Any], field: str, value: Any) -> None:
    assert getattr(options_for(Good, given), field) == value


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"weigth": 1}, "--plugin-options.scheduling_policy.weigth: .* did you mean weight"),
        ({"weight": "heavy"}, "scheduling_policy.weight: 'heavy' is not a valid value"),
        ({"weight": 11}, "weight: 11.0 is above 10"),
        ({"weight": -1}, "weight: -1.0 is below 0"),
        ({"limit": "many"}, "limit.*give int or None"),
        ({"is_strict": "maybe"}, "is_strict"),
        ({"mode": "sideways"}, "mode.*one of up, down"),
        ({"names": "[1"}, "names"),
        ({"table": '{"a": "x"}'}, "table"),
        ({"limit": True}, "limit"),
    ],
)
def test_errors_name_the_option(given: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        options_for(Good, given)


def test_where_is_said() -> None:
    with pytest.raises(ConfigError, match=r"^--model-loader-extra-config.x: "):
        options_for(Good, {"x": 1}, where="--model-loader-extra-config")


def test_round_trip_through_text() -> None:
    made = options_for(
        Good, {"weight": 0.1, "limit": 3, "names": ["x, y", "[z"], "table": {"a": 1}}
    )
    assert options_for(Good, as_text(made)) == made


def test_given_options_are_plain_and_only_those_given() -> None:
    assert given_options(Good, {"names": '["a"]', "is-strict": "1"}) == {
        "names": ["a"],
        "is_strict": True,
    }


def test_description() -> None:
    described = {option["name"]: option for option in describe_options(Good)}
    assert described["limit"] == {
        "name": "limit",
        "type": "int or None",
        "default": None,
        "unit": "tokens",
        "help": "limit",
    }
    assert described["mode"]["type"] == "one of up, down"

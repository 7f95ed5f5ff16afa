"""What every plugin says of itself: why it cannot be used, and the command that helps."""

from __future__ import annotations

import sys

import pytest

from dovetail.interfaces.plugin import Info, NoOptions, Plugin, Value


def plugin(**facts: object) -> type[Plugin]:
    """Return a plugin class with these facts."""
    info = Info(summary="a plugin of a test", **facts)  # type: ignore[arg-type]
    return type("Tested", (Plugin,), {"info": info})


def test_defaults_ask_for_nothing() -> None:
    made = plugin()
    assert made.unavailable_reason() is None
    assert made.why_not("any question") == []
    assert (made.Options, made.capabilities, made.auto_rank) == (NoOptions, frozenset(), 0)


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        (
            {"requires": ("json", "no_such_package")},
            'package "no_such_package" is not installed. Fix: run `pip install "no_such_package"`',
        ),
        (
            {"requires": ("no_such_package.part",), "extra": "gpu"},
            'package "no_such_package.part" is not installed. '
            'Fix: run `pip install "dovetail-llm[gpu]"`',
        ),
    ],
)
def test_the_missing_package_is_named_with_what_installs_it(
    facts: dict[str, object], reason: str
) -> None:
    assert (plugin(**facts).unavailable_reason() or "").rstrip(".") == reason


def test_a_value_says_it_too() -> None:
    assert Value(summary="one", value=1).unavailable_reason() is None
    reason = Value(summary="one", value=1, requires=("no_such_package",)).unavailable_reason()
    assert reason is not None
    assert "no_such_package" in reason


def test_asking_imports_nothing() -> None:
    sys.modules.pop("colorsys", None)
    assert plugin(requires=("colorsys",)).unavailable_reason() is None
    assert "colorsys" not in sys.modules

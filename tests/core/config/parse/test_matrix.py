"""Every flag x route (command line, YAML, variable) x class of value: what comes out, or an error.

What is expected stands here as one table by value type, beside the code that converts.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from dovetail import registry
from dovetail.cli.parser import Parser
from dovetail.config.compat.unsupported_flags import UNSUPPORTED_FLAGS
from dovetail.config.config import Config, flags
from dovetail.config.parse.environment import variable_of
from dovetail.config.parse.flags import add_flags, config_of
from dovetail.config.parse.parse_config import parse_config
from dovetail.config.sections.field import Flag
from dovetail.errors import ConfigError

FLAGS = sorted(flags().values(), key=lambda flag: flag.name)
WRONG = object()
"""The value is refused with an error that names the flag."""
NULL = object()
"""None where the flag is optional, nothing where the default is empty, otherwise an error."""
ZERO = object()
"""0 as the flag's own type, an error where it is out of bounds."""
KEY = object()
"""The flag's own key set to 0, an error where it has none."""

TEXTS = ("true", "false", "0", "", "null")
AS_TEXT: dict[str, tuple[Any, ...]] = {
    "bool": (True, False, False, WRONG, NULL),
    "int": (WRONG, WRONG, ZERO, WRONG, NULL),
    "float": (WRONG, WRONG, ZERO, WRONG, NULL),
    "str": ("true", "false", "0", "", "null"),
    "list": (("true",), ("false",), ("0",), (), ("null",)),
    "json": (WRONG, WRONG, KEY, WRONG, NULL),
}
"""What each of TEXTS means in a variable."""
AS_WORDS = AS_TEXT | {"bool": (True, False, False, WRONG, WRONG)}
"""What each means on the command line: a switch without a value is left out."""

VALUES = (True, False, 0, "", None, {}, [])
AS_YAML: dict[str, tuple[Any, ...]] = {
    "bool": (True, False, False, WRONG, NULL, WRONG, WRONG),
    "int": (WRONG, WRONG, ZERO, WRONG, NULL, WRONG, WRONG),
    "float": (WRONG, WRONG, ZERO, WRONG, NULL, WRONG, WRONG),
    "str": (WRONG, WRONG, "0", "", NULL, WRONG, WRONG),
    "list": (WRONG, WRONG, ("0",), (), NULL, WRONG, ()),
    "json": (WRONG, WRONG, KEY, WRONG, NULL, {}, WRONG),
}
"""What each of VALUES means in a file."""


@cache
def parser() -> Parser:
    made = Parser(prog="dovetail serve", description="")
    made.add_argument("model_tag", nargs="?")
    add_flags(made)
    return made


def by_words(*words: str) -> Config:
    return config_of(parser().parse(words))


def by_variable(flag: Flag, text: str) -> Config:
    return config_of(parser().parse([]), environ={variable_of(flag): text})


def by_file(folder: Path, key: str, value: Any) -> Config:
    file = folder / "settings.yaml"
    file.write_text(yaml.safe_dump({key: value}), encoding="utf-8")
    return by_words("--config", str(file))


def expected(flag: Flag, value: Any) -> Any:
    """Return a value of the tables as it is for this flag."""
    low, high = flag.meta.ge, flag.meta.le
    if value is ZERO:
        return 0 if (low is None or low <= 0) and (high is None or high >= 0) else WRONG
    if value is KEY:
        return {flag.meta.key: 0} if flag.meta.key else WRONG
    if value == ("null",) and flag.meta.kind:
        value = NULL  # where names are wanted, it is none; free words may well be "null"
    if value is NULL and not flag.is_optional:
        return flag.default if flag.default in ((), {}) else WRONG
    if value is NULL or (value == "null" and flag.is_optional and flag.meta.kind):
        return None
    return value


def holds(flag: Flag, wanted: Any, make: Any) -> None:
    """Check that `make` gives a Config with the value, or an error that names the flag."""
    wanted = expected(flag, wanted)
    if wanted is WRONG:
        with pytest.raises(ConfigError) as caught:
            make()
        assert flag.spelling in str(caught.value.where)
        return
    config = make()
    found = config.value(flag.name)
    assert found == wanted
    assert isinstance(found, bool) == isinstance(wanted, bool)
    assert config.is_given(flag.name)


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("flag", FLAGS, ids=lambda flag: flag.name)
def test_the_command_line(flag: Flag) -> None:
    for text, wanted in zip(TEXTS, AS_WORDS[flag.value_type], strict=True):
        holds(flag, wanted, lambda text=text: by_words(f"{flag.spelling}={text}"))
    dotted = {"a": {"b": 1}} if flag.value_type == "json" else WRONG
    holds(flag, dotted, lambda: by_words(f"{flag.spelling}.a.b", "1"))


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("flag", FLAGS, ids=lambda flag: flag.name)
def test_a_variable(flag: Flag) -> None:
    for text, wanted in zip(TEXTS, AS_TEXT[flag.value_type], strict=True):
        if text:
            holds(flag, wanted, lambda text=text: by_variable(flag, text))
    assert not by_variable(flag, "").is_given(flag.name)
    if flag.value_type == "json":
        holds(flag, {"a": {"b": 1}}, lambda: by_variable(flag, '{"a": {"b": 1}}'))


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("flag", FLAGS, ids=lambda flag: flag.name)
def test_a_file(flag: Flag, tmp_path: Path) -> None:
    for value, wanted in zip(VALUES, AS_YAML[flag.value_type], strict=True):
        if value is True and flag.meta.bare is not None:
            wanted = flag.meta.bare  # as the flag without a value
        holds(flag, wanted, lambda value=value: by_file(tmp_path, flag.name, value))
    if flag.value_type == "json":
        holds(flag, {"a": {"b": 1}}, lambda: by_file(tmp_path, f"{flag.name}.a.b", 1))
        return
    with pytest.raises(ConfigError, match="no keys"):
        by_file(tmp_path, f"{flag.name}.a", 1)


CHOICES = [
    flag
    for flag in FLAGS
    if flag.meta.kind and flag.value_type != "json" and flag.name not in UNSUPPORTED_FLAGS
    and not registry.KINDS[flag.meta.kind].is_open
]  # fmt: skip


@pytest.mark.parametrize("flag", CHOICES, ids=lambda flag: flag.name)
def test_a_name_that_is_not_registered(flag: Flag, monkeypatch: pytest.MonkeyPatch) -> None:
    word = "7" if flag.value_type == "int" else "no-such-name"
    for words, environ in (
        ([flag.spelling, word], {}),
        ([], {variable_of(flag): word}),
    ):
        with monkeypatch.context() as patch:
            for name, text in environ.items():
                patch.setenv(name, text)
            with pytest.raises(ConfigError, match=f'"{word}"') as caught:
                parse_config(parser().parse(words))
        assert flag.spelling in str(caught.value.where)

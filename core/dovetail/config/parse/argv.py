"""Normalize the command line for argparse: one spelling per flag, JSON merged, switches resolved.

Handles what argparse cannot: `--a_b`, `--flag.key value`, `--flag.list+ value`, `--switch=false`
and JSON given in several pieces, which are merged from left to right.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dovetail.config.sections.convert import from_value, merge_deep, scalar, set_path
from dovetail.config.sections.field import Flag
from dovetail.errors import ConfigError

NONE = "none"
"""A flag with this word may also be written --no-FLAG, which means it."""
_SWITCH = {"true": True, "false": False}


def prepare(argv: Sequence[str], flags: Iterable[Flag], others: Iterable[str] = ()) -> list[str]:
    """Return the words for argparse. `others` are spellings of options that are not a Flag.

    Raises: ConfigError for JSON that cannot be read or merged.
    """
    words = list(argv)
    table = {spelling: flag for flag in flags for spelling in flag.spellings}
    known = {*table, *others}
    plain: list[str] = []
    merged: dict[str, dict[str, Any]] = {}
    while words:
        word = words.pop(0)
        if word == "--":
            plain += [word, *words]
            break
        plain += _take(word, words, table, known, merged)
    given = [f"{spelling}={json.dumps(value)}" for spelling, value in merged.items()]
    return _before_rest(plain, given)


def _before_rest(plain: list[str], given: list[str]) -> list[str]:
    at = plain.index("--") if "--" in plain else len(plain)
    return [*plain[:at], *given, *plain[at:]]


def _take(
    word: str,
    rest: list[str],
    table: Mapping[str, Flag],
    known: set[str],
    merged: dict[str, dict[str, Any]],
) -> list[str]:
    """Return the words that replace `word`; JSON flags go into `merged`. Mutates: rest, merged."""
    if not word.startswith("--"):
        word = _unfold(word, table)
    if not word.startswith("--"):
        return [word]
    name, equals, value = word.partition("=")
    head, _, path = name.partition(".")
    spelling = _spelling(head, known)
    flag = table.get(spelling)
    if flag is not None and flag.value_type == "json":
        text = value if equals else _next(flag, rest)
        _merge(merged.setdefault(flag.spelling, {}), flag, path, text)
        return []
    if path and flag is not None:
        raise ConfigError(
            "takes one value, no keys.", where=spelling, fix=f"write `{spelling} VALUE`."
        )
    opposite = table.get("--" + spelling.removeprefix("--no-").replace("_", "-"))
    if flag is None and opposite is not None and NONE in opposite.meta.words:
        return [f"{opposite.spelling}={NONE}"]
    if flag is not None and flag.value_type == "bool":
        return [_switch(flag, spelling, value if equals else None, rest)]
    if path:
        return [word]
    return [spelling + equals + value]


def _unfold(word: str, table: Mapping[str, Flag]) -> str:
    """Return "-O3", "-O=3" and "-O.level=3" with the flag's long name; other words unchanged."""
    exact = table.get(word.partition("=")[0])
    if exact is not None and exact.value_type != "json":
        return word  # as -dcp, which begins like -dc
    for short, flag in table.items():
        if flag.value_type == "json" and not short.startswith("--") and word.startswith(short):
            value = word[len(short) :]
            return flag.spelling + (value if value[:1] in ("", "=", ".") else f"={value}")
    return word


def _spelling(head: str, known: set[str]) -> str:
    dashed = "--" + head[2:].replace("_", "-")
    return dashed if dashed in known or head not in known else head


def _next(flag: Flag, rest: list[str]) -> str:
    if not rest:
        raise ConfigError(
            "needs a value.", where=flag.spelling, fix=f"write `{flag.spelling} '{{}}'`."
        )
    return rest.pop(0)


def _switch(flag: Flag, spelling: str, value: str | None, rest: list[str]) -> str:
    if value is None and rest and rest[0].lower() in _SWITCH:
        value = rest.pop(0)
    if value is None:
        return spelling
    is_on = from_value(flag, value)
    if is_on is None:
        raise ConfigError(
            f"{value!r} is neither true nor false.",
            where=flag.spelling,
            fix="leave the flag out for its default.",
        )
    return flag.spelling if is_on else f"--no-{flag.spelling[2:]}"


def _merge(into: dict[str, Any], flag: Flag, path: str, text: str) -> None:
    if not path:
        merge_deep(into, from_value(flag, text) or {})
        return
    try:
        set_path(into, path, scalar(text))
    except ValueError as error:
        raise ConfigError(
            f"cannot set {path}: {error}.",
            where=flag.spelling,
            fix="set either the whole value or its keys.",
        ) from error

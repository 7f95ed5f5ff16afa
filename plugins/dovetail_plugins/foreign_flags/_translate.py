"""Writes the command line of another server as one of `dovetail serve`, and says what changes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from dovetail.cli.parser import Parser
from dovetail.config.compat.deprecated_flags import deprecated_flags, translate
from dovetail.config.config import Config, flags
from dovetail.config.sections.field import Flag
from dovetail.errors import ConfigError, DovetailError
from dovetail_plugins.foreign_flags._lines import LIST, MODEL, SWITCH, Row, words_of

KIND = "command_line"
_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]*=.*", re.DOTALL)
_NUMBER = re.compile(r"-\d+(\.\d+)?")
_NAMED = frozenset(word for word in MODEL.split() if word != "{}")


@dataclass(slots=True)
class Translated:
    """Our command line, what changes with it, and what asks for something that is not here."""

    words: list[str] = field(default_factory=list)
    changes: list[str] = field(default_factory=list)
    absent: list[str] = field(default_factory=list)


def translated(words: Sequence[str]) -> Translated:
    """Return a command line of another server in our words.

    Raises: ConfigError if it starts no server that is known, or cannot be read as ours.
    """
    variables = [word for word in words if _VARIABLE.fullmatch(word)]
    first = next((at for at, word in enumerate(words) if word not in variables), len(words))
    table, rest = _program(words[first:])
    result = Translated()
    ours = _walk(rest, table["flags"], result) if table["flags"] else list(rest)
    ours = _joined(ours, table["joined"])
    for spellings, here, why in table["defaults"]:
        if not {word.partition("=")[0] for word in rest} & set(spellings):
            ours += here.split()
            result.changes.append(f"{here} is added: {why}.")
    found = _as_ours(ours, result)
    result.words = [*words[:first], "dovetail", "serve", *found]
    return result


def _program(words: Sequence[str]) -> tuple[Mapping[str, Any], list[str]]:
    """Return the table of the server that the words start, and the words after it."""
    from dovetail import registry

    named = [PurePath(words[0]).name, *words[1:]] if words else []
    for server in registry.names(KIND):
        table = registry.admin.value_of(KIND, server)
        for program in table["programs"]:
            parts = program.split()
            for at in range(min(3, len(named))):
                if named[at : at + len(parts)] == parts:
                    return table, named[at + len(parts) :]
    raise ConfigError(
        "the words start no server that is known.",
        where="dovetail config translate",
        fix="begin with vllm serve, python -m sglang.launch_server or llama-server.",
    )


def _walk(words: Sequence[str], rows: Mapping[str, Row], result: Translated) -> list[str]:
    """Return dovetail's words for the words of another server's command line. Mutates: result"""
    left, ours = list(words), list[str]()
    while left:
        word = left.pop(0)
        name, equals, value = word.partition("=")
        row = rows.get(name)
        if row is None:
            values = [value] if equals else _values(left, LIST)
            result.absent.append(f"{' '.join([name, *values])}: this is not a known flag.")
            continue
        values = [value] if equals else _values(left, row["takes"])
        ours += _row_words(name, values, row, result)
    return ours


def _values(left: list[str], takes: str) -> list[str]:
    """Return the values that follow a flag. Mutates: left"""
    if takes == SWITCH:
        return []
    if takes != LIST:
        return [left.pop(0)] if left else []
    values = []
    while left and (not left[0].startswith("-") or _NUMBER.fullmatch(left[0])):
        values.append(left.pop(0))
    return values


def _joined(ours: Sequence[str], joined: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Return our words with one value for a flag of which several flags of theirs gave parts."""
    words = list(ours)
    for name, values in joined.items():
        at = [i for i, word in enumerate(words) if word == name]
        value = values.get(" ".join(sorted({words[i + 1] for i in at})))
        if value is not None:
            words = [w for i, w in enumerate(words) if i not in at and i - 1 not in at]
            words += [name, value]
    return words


def _row_words(name: str, values: Sequence[str], row: Row, result: Translated) -> list[str]:
    written, note = " ".join([name, *values]), row["note"]
    by_value = row["values"].get(" ".join(values).lower(), row["values"].get(" ".join(values)))
    if by_value is not None:
        change = f"is {by_value}" if by_value else "changes nothing"
        result.changes.append(f"{written} {change}.")
        return words_of(by_value, values)
    if row["absent"]:
        result.absent.append(f"{written}: {note}.")
        return []
    if not row["here"]:
        result.changes.append(f"{name} changes nothing: {note}.")
        return []
    words = words_of(row["here"], values)
    if words[0] != name or note:
        there = "the model, the first argument" if words[0] in _NAMED else _text(row["here"])
        result.changes.append(f"{name} is {there}{f'; {note}' if note else ''}.")
    return words[1:] if words[0] in _NAMED else words


def _text(here: str) -> str:
    """Return our words without the place of the value."""
    return " ".join(here.replace("{}", "").split())


def _as_ours(words: Sequence[str], result: Translated) -> list[str]:
    """Return the words with today's names alone. Mutates: result. Raises: ConfigError"""
    from dovetail.config.rules.checks import check_choices
    from dovetail_plugins.commands._serve_flags import add_serve_arguments

    parser = Parser(prog="dovetail serve", description="")
    add_serve_arguments(parser)
    given = vars(parser.parse(words))
    fields = {}
    for name, value in given.items():
        if name in flags():
            fields[name] = value
        elif name in deprecated_flags() or name in given.get("newer_names", ()):
            try:
                translate(name, value)
            except ConfigError as error:
                result.absent.append(str(error))
            else:
                fields[name] = value
    config = Config.from_fields(fields)
    result.changes += config.notes
    try:
        check_choices(config)
    except DovetailError as error:
        result.absent.append(str(error))
    files = [word for path in given["config_files"] for word in ("--config", path)]
    return [*given["model_tag"], *files, *_flag_words(config)]


def _flag_words(config: Config) -> Iterator[str]:
    for name in config.origins:
        value, flag = config.value(name), flags()[name]
        if value is not None:
            yield from _words_for(flag, value)


def _words_for(flag: Flag, value: Any) -> list[str]:
    """Return the words that set a flag to a value."""
    match flag.value_type:
        case "bool":
            return [flag.spelling if value else f"--no-{flag.spelling[2:]}"]
        case "json":
            return [flag.spelling, json.dumps(value)]
        case "list" if value and not any(item.startswith("-") for item in value):
            return [flag.spelling, *value]
        case "list":
            return [f"{flag.spelling}={json.dumps(list(value))}"]
    text = str(value)
    return [f"{flag.spelling}={text}"] if text.startswith("-") else [flag.spelling, text]

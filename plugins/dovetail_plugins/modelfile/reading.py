"""The reader of Modelfiles: instructions with values in quotes, over several lines or on one.

Format: each instruction begins a line and is not case sensitive. A value that begins with \""" or "
ends where a line ends with the same; there are no escapes. Source:
https://github.com/ollama/ollama/blob/main/docs/modelfile.mdx
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dovetail.errors import ConfigError
from dovetail_plugins.modelfile.model import STOP, Modelfile, example, parameter

QUOTES = ('"""', '"')
SETTERS = {"from": "base", "template": "template", "system": "system", "requires": "requires"}
"""Instructions with one value, and their field; the last one of a file counts, but for FROM."""
LISTS = {"adapter": "adapters", "license": "licenses"}
INSTRUCTIONS = (*SETTERS, *LISTS, "parameter", "message")
_FIX = f"use some of {', '.join(sorted(INSTRUCTIONS)).upper()}; a comment begins with #."
MAX_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction: its name in small letters, its value, and the line where it begins."""

    name: str
    value: str
    line: int


def read_file(path: Path) -> Modelfile:
    """Return the Modelfile in a file. Raises: ConfigError"""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise ConfigError(f"a Modelfile has at most {MAX_BYTES} bytes.", where=str(path))
        is_wide = content[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
        text = content.decode("utf-16" if is_wide else "utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the file cannot be read: {error}.", where=str(path)) from error
    return read(text, where=str(path))


def read(text: str, where: str = "modelfile") -> Modelfile:
    """Return a Modelfile from its text. Raises: ConfigError, which names the line"""
    fields: dict[str, Any] = {"parameters": {}, "messages": (), "projectors": ()}
    for one in instructions(text, where):
        _take(fields, one, f"{where}, line {one.line}")
    if "base" not in fields:
        raise ConfigError(
            "the model is missing.", where=where, fix="begin with FROM and a model's name or file."
        )
    return Modelfile(**fields)


def _take(fields: dict[str, Any], one: Instruction, where: str) -> None:
    """Add an instruction to the fields. Mutates: fields. Raises: ConfigError"""
    name, value = one.name, one.value
    if name == "from" and "base" in fields:
        fields["projectors"] += (value,)
    elif name in SETTERS:
        fields[SETTERS[name]] = value
    elif name in LISTS:
        fields[LISTS[name]] = (*fields.get(LISTS[name], ()), value)
    elif name == "message":
        role, content = _two(value, where, "MESSAGE", "a role and a text")
        fields["messages"] += (example(role, content, where),)
    else:
        key, text = _two(value, where, "PARAMETER", "a name and a value")
        add_parameter(fields["parameters"], key.lower(), text, where)


def add_parameter(parameters: dict[str, Any], name: str, value: Any, where: str) -> None:
    """Set a parameter; each `stop` is added. Mutates: parameters. Raises: ConfigError"""
    found = parameter(name, value, where)
    parameters[name] = (*parameters.get(STOP, ()), found) if name == STOP else found


def instructions(text: str, where: str) -> Iterator[Instruction]:
    """Yield the instructions of a Modelfile. Raises: ConfigError"""
    lines = iter(enumerate(text.replace("\r\n", "\n").split("\n"), 1))
    for number, line in lines:
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        word, value = _split(line)
        name, place = word.lower(), f"{where}, line {number}"
        if name not in INSTRUCTIONS:
            raise ConfigError(f'there is no instruction "{word}".', where=place, fix=_FIX)
        if not value:
            raise ConfigError(f"{name.upper()} has no value.", where=place, fix="write one.")
        start, value = _keyed(name, value)
        while (found := _unquoted(value)) is None:
            following = next(lines, None)
            if following is None:
                raise ConfigError(
                    f"a quote of {name.upper()} is not closed.",
                    where=place,
                    fix="end the value with the quote that it begins with, at the end of a line.",
                )
            value += "\n" + following[1]
        yield Instruction(name, start + found, number)


def _split(text: str) -> tuple[str, str]:
    word, *rest = text.lstrip().split(maxsplit=1)
    return word, rest[0] if rest else ""


def _keyed(name: str, value: str) -> tuple[str, str]:
    """Return what comes before the quotes of a value: a parameter's name, a message's role."""
    if name not in ("parameter", "message") or len(value.split()) < 2:
        return "", value
    key, rest = _split(value)
    return key + " ", rest


def _unquoted(value: str) -> str | None:
    """Return a value without its quotes; None if it goes on in the next line."""
    bare = value.strip()
    for quote in QUOTES:
        if bare.startswith(quote):
            is_closed = len(bare) >= 2 * len(quote) and bare.endswith(quote)
            return bare[len(quote) : -len(quote)] if is_closed else None
    return bare


def _two(value: str, where: str, name: str, what: str) -> tuple[str, str]:
    first, _, second = value.partition(" ")
    if not second:
        raise ConfigError(f"{name} needs {what}.", where=where, fix="write both.")
    return first, second

"""Help screens: a short first one, and topics on request (a group, a flag, a word, all).

Renders any Parser; config flags are described by `config.describe`.
"""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterable

from dovetail.cli.parser import Parser, nearest
from dovetail.config.describe import sentence, usage
from dovetail.config.flags import FlagAction
from dovetail.errors import ConfigError

WIDTH = 96
SHORT_LIMIT = 24
"""A parser with more arguments than this shows groups on its first screen."""
_FILE_HINT = "Flags also stand in a YAML file: --config FILE.yaml. "
_VERBOSE = "--verbose shows tracebacks."


def first_screen(parser: Parser, common: Iterable[str] = ()) -> str:
    """Return plain --help; `common` names the flags worth showing at once."""
    actions = [action for _, _, group in parser.sections() for action in group]
    lines = [f"usage: {_usage(parser)}", "", str(parser.description), ""]
    if len(actions) <= SHORT_LIMIT:
        return "\n".join(lines + _entries(actions) + _general())
    lines += _entries(a for a in actions if not a.option_strings)
    lines += ["most used:", *_short_rows(actions, set(common)), ""]
    lines += ["groups:", *_group_rows(parser), ""]
    prog = parser.prog
    lines += [
        f"more: {prog} --help=GROUP | --help=FLAG | --help=WORD (search) | --help=all",
        _FILE_HINT + _VERBOSE if any("--config" in a.option_strings for a in actions) else _VERBOSE,
    ]
    return "\n".join(lines)


def topic(parser: Parser, name: str) -> str:
    """Return the help of a topic. Raises: ConfigError with the nearest topics."""
    word = name.lower().lstrip("-").replace("_", "-")
    if word == "all":
        return "\n".join(_whole(parser))
    if word in ("listgroup", "groups"):
        return "\n".join(_group_rows(parser))
    for title, description, actions in parser.sections():
        if word in (title.lower(), title.lower().removesuffix("config")):
            return "\n".join([f"{title}: {description}", "", *_entries(actions)])
    actions = [action for _, _, group in parser.sections() for action in group]
    exact = [a for a in actions if f"--{word}" in a.option_strings or f"-{word}" == name]
    found = exact or [a for a in actions if _mentions(a, word)]
    if not found:
        raise _unknown(parser, name, actions)
    return "\n".join(_entries(found))


def command_screen(usage_line: str, summary: str, commands: dict[str, str], tail: str) -> str:
    """Return the first screen of `dovetail` itself."""
    width = max(map(len, commands)) + 2
    rows = [f"  {name:<{width}}{text}" for name, text in commands.items()]
    return "\n".join([f"usage: {usage_line}", "", summary, "", "commands:", *rows, "", tail])


def _unknown(parser: Parser, name: str, actions: list[argparse.Action]) -> ConfigError:
    near = nearest(f"--{name}", [option for a in actions for option in a.option_strings])
    fix = f"did you mean --help={near.lstrip('-')}?" if near else f"{parser.prog} --help=all"
    return ConfigError(f"no group, flag or help text has {name!r}.", where="--help", fix=fix)


def _usage(parser: Parser) -> str:
    places = [a for a in parser._actions if not a.option_strings]
    words = [f"[{_place(a)}]" if a.nargs in ("?", "*") else str(_place(a)) for a in places]
    return " ".join([parser.prog, *words, "[--flag value ...]"])


def _place(action: argparse.Action) -> str:
    return str(action.metavar or action.dest.upper())


def _general() -> list[str]:
    return ["  --verbose", "      show the traceback of an error"]


def _whole(parser: Parser) -> list[str]:
    lines = [f"usage: {_usage(parser)}", ""]
    for title, description, actions in parser.sections():
        lines += [f"{title}: {description}" if description else title, *_entries(actions), ""]
    return lines


def _group_rows(parser: Parser) -> list[str]:
    rows = [(t, d, len(a)) for t, d, a in parser.sections() if isinstance(a[0], FlagAction)]
    return [f"  {title:<21}{count:>3}  {description}" for title, description, count in rows]


def _short_rows(actions: Iterable[argparse.Action], common: set[str]) -> list[str]:
    chosen = [a for a in actions if a.dest in common]
    return [f"  {_names(a):<36} {_clip(str(a.help))}" for a in chosen]


def _clip(text: str) -> str:
    return textwrap.shorten(text.replace("%%", "%"), width=WIDTH - 39, placeholder=" ...")


def _names(action: argparse.Action) -> str:
    if isinstance(action, FlagAction):
        return action.flag.spelling + (f" {action.metavar}" if action.metavar else "")
    return _spelled(action)


def _spelled(action: argparse.Action) -> str:
    if not action.option_strings:
        return _place(action)
    names = ", ".join(action.option_strings)
    return f"{names} {_place(action)}" if action.nargs != 0 else names


def _entries(actions: Iterable[argparse.Action]) -> list[str]:
    lines: list[str] = []
    for action in actions:
        is_flag = isinstance(action, FlagAction)
        lines.append("  " + (usage(action.flag) if is_flag else _spelled(action)))  # type: ignore[attr-defined]
        text = sentence(action.flag) if is_flag else str(action.help or "")  # type: ignore[attr-defined]
        lines += textwrap.wrap(text, WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6)
    return lines


def _mentions(action: argparse.Action, word: str) -> bool:
    names = any(word in option for option in action.option_strings)
    return names or word.replace("-", " ") in str(action.help or "").lower()

"""Help screens: a short first one, and topics on request (a group, a flag, a word, all).

Renders any Parser; `config.report.describe` describes config flags. No plugin is imported.
"""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterable

from dovetail.cli.parser import Parser, nearest
from dovetail.config.parse.flags import FlagAction, add_newer
from dovetail.config.report.describe import (
    choice_rows,
    is_class_kind,
    routes,
    sentence,
    unavailable_rows,
    usage,
)
from dovetail.errors import ConfigError

WIDTH = 96
SHORT_LIMIT = 24
"""A parser with more arguments than this shows groups on its first screen."""
_FILE_HINT = "Flags can also be set in a YAML file: --config FILE.yaml. "
_VERBOSE = "--verbose tells more."
_GROUP_ALIASES = {"vllm": "EngineConfig", "decoding": "StructuredOutputsConfig"}
"""Another server's group name, without "config" -> its name here."""
_FLAGS_OF = {
    "options": (
        "config_files",
        "headless",
        "api_server_count",
        "disable_log_stats",
        "enable_log_requests",
        "disable_log_requests",
        "use_v2_block_manager",
    ),
}
"""Groups that exist only in other servers -> their flags."""


def show(parser: Parser, name: str, common: Iterable[str] = ()) -> None:
    """Print the first screen, or the topic of this name; "page" uses the pager.
    Raises: ConfigError for an unknown topic."""
    if name.lower() == "page":
        import pydoc  # handles $PAGER, less, and standard output that is no terminal

        return pydoc.pager("\n".join(_whole(parser)) + "\n")
    return print(topic(parser, name) if name else first_screen(parser, common))


def first_screen(parser: Parser, common: Iterable[str] = ()) -> str:
    """Return plain --help; `common` names the flags to show on the first screen."""
    actions = [action for _, _, group in parser.sections() for action in group]
    lines = [f"usage: {_usage(parser)}", "", str(parser.description), ""]
    if len(actions) <= SHORT_LIMIT:
        return "\n".join(lines + _entries(actions) + _general())
    lines += _entries(a for a in actions if not a.option_strings)
    lines += ["", "most used:", *_short_rows(actions, set(common)), ""]
    lines += ["groups, each with its number of flags:", *_group_columns(parser), ""]
    prog = parser.prog
    lines += [
        f"more: {prog} --help=GROUP | --help=FLAG | --help=WORD (search) | --help=all|page",
        _FILE_HINT + _VERBOSE if any("--config" in a.option_strings for a in actions) else _VERBOSE,
    ]
    return "\n".join(lines)


def topic(parser: Parser, name: str) -> str:
    """Return the help of a topic. Raises: ConfigError with the nearest topics."""
    word = name.lower().lstrip("-").replace("_", "-").partition(".")[0]
    if word in ("all", "page"):
        return "\n".join(_whole(parser))
    if word in ("listgroup", "groups"):
        return "\n".join(_group_rows(parser))
    actions = [action for _, _, group in parser.sections() for action in group]
    short = f"-{name.lstrip('-')}"
    exact = [a for a in actions if {f"--{word}", short} & set(a.option_strings)]
    if not exact:
        add_newer(parser)
        exact = [a for a in parser._actions if f"--{word}" in a.option_strings]
    if exact:
        return "\n".join(line for action in exact for line in _whole_entry(action))
    return "\n".join(_group(parser, word) or _search(parser, name, word, actions))


def _group(parser: Parser, word: str) -> list[str]:
    """Return the help of a group, by its name here or in other servers, or an empty list."""
    stem = word.removesuffix("config")
    actions = [action for _, _, group in parser.sections() for action in group]
    listed = [a for a in actions if a.dest in _FLAGS_OF.get(stem, ())]
    if listed:
        return _entries(listed)
    wanted = _GROUP_ALIASES.get(stem, word).lower()
    for title, description, members in parser.sections():
        if wanted in (title.lower(), title.lower().removesuffix("config")):
            return [f"{title}: {description}", "", *_entries(members)]
    return []


def _search(parser: Parser, name: str, word: str, actions: list[argparse.Action]) -> list[str]:
    """Return the arguments with the word in their name, then the names of those whose help contains
    it."""
    named = [a for a in actions if any(word in option for option in a.option_strings)]
    text = word.replace("-", " ")
    by_help = [a for a in actions if a not in named and text in str(a.help or "").lower()]
    if not named and not by_help:
        raise _unknown(parser, name, actions)
    if not named:
        return _entries(by_help)
    others = ", ".join(_names(action).partition(" ")[0] for action in by_help)
    return [*_entries(named), *(textwrap.wrap(f"also: {others}", WIDTH) if by_help else ())]


def _unknown(parser: Parser, name: str, actions: list[argparse.Action]) -> ConfigError:
    options = [o for a in actions for o in a.option_strings if not o.startswith("--no-")]
    near = nearest(f"--{name}", options).partition(" ")[0]
    fix = f"did you mean --help={near.lstrip('-')}?" if near else f"{parser.prog} --help=all"
    return ConfigError(f"no group, flag or help text contains {name!r}.", where="--help", fix=fix)


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
    return [f"  {title:<24}{count:>3}  {description}" for title, description, count in rows]


def _group_columns(parser: Parser) -> list[str]:
    """Return the groups' names and sizes in three columns."""
    rows = [(t, len(a)) for t, _, a in parser.sections() if isinstance(a[0], FlagAction)]
    cells = [f"{title} {count}" for title, count in rows]
    lines = ["".join(f"{cell:<30}" for cell in cells[i : i + 3]) for i in range(0, len(cells), 3)]
    return ["  " + line.rstrip() for line in lines]


def _short_rows(actions: Iterable[argparse.Action], common: set[str]) -> list[str]:
    chosen = [a for a in actions if a.dest in common]
    return [f"  {_names(a):<36} {_clip(str(a.help))}" for a in chosen]


def _clip(text: str) -> str:
    return _clip_to(text.replace("%%", "%"), WIDTH - 39)


def _clip_to(text: str, width: int) -> str:
    return textwrap.shorten(text, width=width, placeholder=" ...")


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
        lines += _indented(text)
    return lines


def _whole_entry(action: argparse.Action) -> list[str]:
    """Return the full help of one argument: its other routes, and every choice on a line."""
    if not isinstance(action, FlagAction):
        return _entries([action])
    flag = action.flag
    lines = ["  " + usage(flag), *_indented(sentence(flag, is_listing_choices=False))]
    lines += _indented(routes(flag))
    rows = choice_rows(flag)
    width = max((len(name) for name, _ in rows), default=0) + 2
    lines += [f"      choices ({flag.meta.kind}):"] if rows else []
    lines += [
        f"        {name:<{width}}{_clip_to(text, WIDTH - width)}".rstrip() for name, text in rows
    ]
    if rows and is_class_kind(flag):
        lines.append("        or NAME@PACKAGE, package.module:Class, path/to/file.py:Class")
    for names, reason in unavailable_rows(flag):
        lines += _indented(f"not available: {names}: {reason}")
    return lines


def _indented(text: str) -> list[str]:
    pad = " " * 6
    return textwrap.wrap(
        text, WIDTH, initial_indent=pad, subsequent_indent=pad, break_on_hyphens=False
    )

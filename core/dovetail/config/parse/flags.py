"""Flags to argparse and back: every Flag becomes an argument, a parsed namespace becomes a Config.

Values are converted by `sections.convert`, choices are checked in `resolve`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from dovetail.config.compat.deprecated_flags import (
    NEWER,
    DeprecatedFlags,
    deprecated_flags,
    newer_flags,
)
from dovetail.config.config import GROUPS, Config, flags
from dovetail.config.sections.convert import from_value
from dovetail.config.sections.field import Flag, flags_of, group_title
from dovetail.errors import ConfigError

Group = TypeVar("Group")
_METAVARS = {"int": "N", "float": "X", "str": "TEXT", "list": "ITEM", "json": "JSON", "bool": None}
FILES = "config_files"
_NARGS: dict[str, int | str] = {"bool": 0, "list": "+"}


class FlagAction(argparse.Action):
    """Stores the converted value of one Flag; a flag that is not given sets no attribute."""

    def __init__(self, option_strings: Sequence[str], dest: str, *, flag: Flag) -> None:
        super().__init__(
            option_strings,
            dest,
            nargs=_NARGS.get(flag.value_type) if flag.meta.bare is None else "?",
            default=argparse.SUPPRESS,
            metavar=metavar(flag),
            help=flag.meta.help.replace("%", "%%"),
        )
        self.flag = flag

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        """Convert and store the value. Mutates: namespace. Raises: ConfigError."""
        if self.flag.value_type == "bool":
            value: Any = not str(option_string).startswith("--no-")
        elif self.flag.value_type == "list":
            value = getattr(namespace, self.dest, ()) + _items(self.flag, values)
        elif values is None:
            value = self.flag.meta.bare
        else:
            value = from_value(self.flag, values)
        setattr(namespace, self.dest, value)


def metavar(flag: Flag) -> str | None:
    """Return the placeholder of the value in usage lines."""
    if flag.value_type == "bool":
        return None
    if flag.meta.metavar:
        return flag.meta.metavar
    return "NAME" if flag.meta.kind and flag.value_type == "str" else _METAVARS[flag.value_type]


def add_flags(
    parser: argparse.ArgumentParser, groups: Iterable[type[object]] = tuple(GROUPS.values())
) -> None:
    """Add the flags of these groups, deprecated flags and --config. Mutates: parser."""
    add_groups(parser, (*groups, DeprecatedFlags))
    parser.add_argument(
        "--config",
        action="append",
        default=[],
        metavar="FILE.yaml",
        dest=FILES,
        help="settings as YAML, `flag: value` per line; flags given here win over the file",
    )


def add_newer(parser: argparse.ArgumentParser) -> None:
    """Add the newer flags to a parser of `add_flags`; --help lists none. Mutates: parser."""
    known = {action.dest for action in parser._actions}
    if FILES in known:
        missing = [one.flag for name, one in newer_flags().items() if name not in known]
        add_section(parser, NEWER, argparse.SUPPRESS, missing)
        parser.set_defaults(newer_names=tuple(newer_flags()))


def add_groups(parser: argparse.ArgumentParser, groups: Iterable[type[object]]) -> None:
    """Add only the flags of these groups. Mutates: parser."""
    for group in groups:
        add_section(parser, group.__name__, group_title(group), flags_of(group))


def add_section(
    parser: argparse.ArgumentParser, title: str, description: str, flags: Iterable[Flag]
) -> None:
    """Add these flags as one section of the help. Mutates: parser."""
    section = parser.add_argument_group(title, description)
    for flag in flags:
        section.add_argument(*_options(flag), dest=flag.name, action=FlagAction, flag=flag)


def group_of(namespace: argparse.Namespace, group: type[Group]) -> Group:
    """Return one group's dataclass with the given flags."""
    given = vars(namespace)
    return group(**{f.name: given[f.name] for f in flags_of(group) if f.name in given})


def config_of(
    namespace: argparse.Namespace,
    *,
    model: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> Config:
    """Return the Config of files, variables (`environ`) and parsed arguments; later sources win.

    `model` is the positional argument. Raises: ConfigError if a file or a variable is wrong, or the
    model is named twice.
    """
    from dovetail.config.parse.environment import CONFIG, read
    from dovetail.config.parse.yaml_files import read_fields

    config = Config()
    first = (environ or {}).get(CONFIG)
    for path in [*([first] if first else []), *namespace.config_files]:
        config = config.with_fields(read_fields(path), origin=path)
    variables = read(environ or {})
    for name, fields in variables.fields.items():
        config = config.with_fields(fields, origin=name)
    config = config.with_notes(variables.notes, variables.warnings)
    names = {*flags(), *deprecated_flags(), *getattr(namespace, "newer_names", ())}
    given = {name: value for name, value in vars(namespace).items() if name in names}
    if model is not None and given.setdefault("model", model) != model:
        raise ConfigError(
            f"names {given['model']!r}, but the argument names {model!r}.",
            where="--model",
            fix="name the model once.",
        )
    return config.with_fields(given, origin="command line")


def _options(flag: Flag) -> list[str]:
    options = list(flag.spellings)
    if flag.value_type == "bool":
        options += [f"--no-{name[2:]}" for name in flag.spellings if name.startswith("--")]
    return options


def _items(flag: Flag, values: Sequence[str]) -> tuple[str, ...]:
    if len(values) == 1:
        return tuple(from_value(flag, values[0]))
    return tuple(item for value in values for item in from_value(flag, value))

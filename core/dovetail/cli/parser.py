"""Parser: argparse with dovetail's spelling rules, errors and help topics.

Errors are raised as ConfigErrors, so that they are printed in one place.
"""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Sequence
from typing import NoReturn

from dovetail.config.parse.argv import prepare
from dovetail.config.parse.flags import FlagAction, add_newer
from dovetail.config.sections.field import Flag
from dovetail.errors import ConfigError

HELP_FLAGS = ("-h", "--help")


class Parser(argparse.ArgumentParser):
    """Parses one subcommand. `cli.main` handles `--help` and `--verbose` beforehand."""

    def __init__(self, *, prog: str, description: str) -> None:
        super().__init__(prog=prog, usage=prog, description=description, add_help=False)
        self.allow_abbrev = False

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """Return the parsed arguments. Raises: ConfigError with the nearest flag's name."""
        names = [word.replace("_", "-") for word in argv if re.match("--?[A-Za-z]", word)]
        heads = {re.split("[=.]", name)[0] for name in names}
        if heads - {o for action in self._actions for o in action.option_strings}:
            add_newer(self)
        words = prepare(argv, self.flags(), self._others())
        is_plain = words[:1] == ["--"]  # which the intermixed way drops before it reads the rest
        parse = self.parse_known_args if is_plain else self.parse_known_intermixed_args
        namespace, extras = parse(words)
        if extras:
            self._refuse(extras)
        return namespace

    def flags(self) -> list[Flag]:
        """Return the config flags among the arguments."""
        return [action.flag for action in self._actions if isinstance(action, FlagAction)]

    def sections(self) -> list[tuple[str, str, list[argparse.Action]]]:
        """Return (title, description, arguments) of every group that is shown."""
        groups = [
            (group.title or "", group.description or "", list(group._group_actions))
            for group in self._action_groups
        ]
        return [group for group in groups if group[2] and group[1] != argparse.SUPPRESS]

    def error(self, message: str) -> NoReturn:
        """Raise argparse's complaint as a ConfigError."""
        raise ConfigError(f"{message}.", where=self.prog, fix=f"see `{self.prog} --help`.")

    def _others(self) -> list[str]:
        return [o for action in self._actions for o in action.option_strings if o[:2] == "--"]

    def _refuse(self, extras: list[str]) -> NoReturn:
        word = next((e for e in extras if e.startswith("-") and e != "-"), None)
        if word is None:
            raise ConfigError(
                f"cannot place {' '.join(extras)!r}.", where=self.prog, fix=f"see `{self.prog} -h`."
            )
        name = word.split("=")[0]
        near = nearest(name, [o for action in self._actions for o in action.option_strings])
        hint = f"did you mean {near}?" if near else f"`{self.prog} --help=all` lists every flag."
        raise ConfigError(f"unknown flag {name}.", where=self.prog, fix=hint)


def nearest(name: str, options: Sequence[str]) -> str:
    """Return the options whose spelling is closest to `name`, or ""."""
    wanted = name.lower().replace("_", "-")
    near = difflib.get_close_matches(wanted, options, n=2, cutoff=0.6)
    if not near and len(wanted) > 4:
        near = [o for o in options if wanted.lstrip("-") in o and not o.startswith("--no-")][:2]
    return " or ".join(near)


def take_help(argv: Sequence[str]) -> str | None:
    """Return the requested help topic ("" for plain help), or None if no help is requested."""
    for word in argv:
        if word == "--":
            return None
        if word in HELP_FLAGS:
            return ""
        if word.startswith("--help="):
            return word.partition("=")[2]
    return None


def take_switch(argv: Sequence[str], switch: str) -> tuple[list[str], bool]:
    """Return the words without `switch`, and whether it was present."""
    end = list(argv).index("--") if "--" in argv else len(argv)
    words = [word for word in argv[:end] if word != switch]
    return words + list(argv[end:]), len(words) < end

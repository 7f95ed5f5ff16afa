"""Command: a subcommand of `dovetail`. The entry point's name is the word on the command line.

Its module must import nothing heavy before `run`, because help screens and shell completion
construct commands.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from dovetail.interfaces.plugin import Plugin

if TYPE_CHECKING:
    import argparse


class Command(Plugin):
    """A subcommand. `info.summary` is its line in `dovetail --help`, read without an import.

    `parts` splits a command: the next word -> "module:Class" of the command that runs. Such a
    command has no arguments of its own. `common` names the arguments on the first help screen, for
    commands with too many to show.
    """

    interface_version: ClassVar[int] = 1
    parts: ClassVar[Mapping[str, str]] = {}
    common: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, options: Any) -> None:
        self.options = options

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's arguments; none by default. Mutates: parser"""

    def run(self, args: argparse.Namespace) -> int:
        """Run; return the exit status. Raises: DovetailError, which is shown as cause and fix"""
        raise NotImplementedError(f"{type(self).__name__} does not run; one of its parts does")

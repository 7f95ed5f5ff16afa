"""`dovetail config translate`: another server's command line in our words, and what changes."""

from __future__ import annotations

import argparse
import shlex
import sys

from dovetail.interfaces.command import Command
from dovetail.interfaces.plugin import Info


class ConfigTranslateCommand(Command):
    """`dovetail config translate`."""

    info = Info(summary="write a command line of vLLM, SGLang or llama.cpp as one of dovetail")

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the command line. Mutates: parser."""
        parser.add_argument(
            "words",
            nargs="*",
            metavar="WORD",
            help="the command line, after `--`: dovetail config translate -- llama-server -m ...",
        )

    def run(self, args: argparse.Namespace) -> int:
        """Print our command line on standard output, and what changes on standard error.

        Returns 1 if something is asked for that is not here, else 0. Raises: ConfigError
        """
        from dovetail_plugins.foreign_flags._translate import translated

        result = translated(args.words)
        print(shlex.join(result.words), flush=True)
        for line in result.changes:
            print(f"note: {line}", file=sys.stderr)
        for line in result.absent:
            print(f"not here: {line}", file=sys.stderr)
        return 1 if result.absent else 0

"""`dovetail rm`: deletes a model, only from the hub's cache."""

from __future__ import annotations

import argparse
import sys

from dovetail.errors import ConfigError
from dovetail.interfaces.command import Command
from dovetail.interfaces.plugin import Info

WHERE = "dovetail rm"


class RmCommand(Command):
    """`dovetail rm`."""

    info = Info(summary="delete a model from the Hugging Face cache")

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the model, the confirmation and the store arguments. Mutates: parser."""
        from dovetail_plugins.commands._model_stores import add_store_arguments

        parser.add_argument("model", metavar="MODEL", help="a name that `dovetail list` shows")
        parser.add_argument("-y", "--yes", action="store_true", help="do not ask")
        add_store_arguments(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Ask, delete, and print how much was freed; return the exit status. Raises:
        ConfigError."""
        from dovetail_plugins.commands._model_stores import stores_of
        from dovetail_plugins.inspect.render import size
        from dovetail_plugins.model_removal import removal_of

        removal = removal_of(stores_of(args), args.model, WHERE)
        freed = size(removal.num_bytes)
        if not args.yes and not _is_wanted(f"Delete {args.model} ({freed}, {removal.folder})?"):
            print("Nothing was deleted.")
            return 1
        removal.run()
        print(f"{args.model} is deleted: {freed} are free again.")
        return 0


def _is_wanted(question: str) -> bool:
    """Return the user's answer. Raises: ConfigError if there is no terminal to ask on"""
    if not sys.stdin.isatty():
        raise ConfigError("nobody can be asked here.", where=WHERE, fix="add --yes.")
    return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")

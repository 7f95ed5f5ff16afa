"""`dovetail rm`: deletes a model from the hub's cache or Ollama's store, or one created here."""

from __future__ import annotations

import argparse
import sys

from dovetail.errors import ConfigError
from dovetail.interfaces.command import Command
from dovetail.interfaces.plugin import Info

WHERE = "dovetail rm"


class RmCommand(Command):
    """`dovetail rm`."""

    info = Info(summary="delete a model of the hub's cache, of Ollama's store, or a created one")

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

        if (created := _created(args.model)) is not None:
            return _remove_created(created, is_sure=args.yes)
        removal = removal_of(stores_of(args), args.model, WHERE)
        freed = size(removal.num_bytes)
        if not args.yes and not _is_wanted(f"Delete {args.model} ({freed}, {removal.folder})?"):
            print("Nothing was deleted.")
            return 1
        removal.run()
        print(f"{args.model} is deleted: {freed} are free again.")
        return 0


def _created(name: str) -> str | None:
    """Return the full name of a created model; None if there is none of this name."""
    from dovetail_plugins.created_models.names import LATEST
    from dovetail_plugins.created_models.store import CreatedStore

    names = set(CreatedStore().names())
    return next((one for one in (name, name + LATEST) if one in names), None)


def _remove_created(name: str, *, is_sure: bool) -> int:
    from dovetail_plugins.created_models.store import CreatedStore

    if not is_sure and not _is_wanted(f"Delete {name}, and its files that no other model uses?"):
        print("Nothing was deleted.")
        return 1
    CreatedStore().remove(name)
    print(f"{name} is deleted.")
    return 0


def _is_wanted(question: str) -> bool:
    """Return the user's answer. Raises: ConfigError if there is no terminal to ask on"""
    if not sys.stdin.isatty():
        raise ConfigError("nobody can be asked here.", where=WHERE, fix="add --yes.")
    return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")

"""`dovetail cp`: a further name for a model."""

from __future__ import annotations

import argparse

from dovetail.errors import ConfigError, RequestError
from dovetail.interfaces.command import Command
from dovetail.interfaces.plugin import Info

WHERE = "dovetail cp"


class CpCommand(Command):
    """`dovetail cp`."""

    info = Info(summary="give a model of this machine a further name")

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the names and the store arguments. Mutates: parser."""
        from dovetail_plugins.commands._model_stores import add_store_arguments

        parser.add_argument("source", metavar="MODEL", help="a name that `dovetail list` shows")
        parser.add_argument("name", metavar="NAME", help="the further name: NAME or NAME:TAG")
        add_store_arguments(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Copy; return the exit status. Raises: ConfigError"""
        from dovetail_plugins.commands._created import catalogue_of, store
        from dovetail_plugins.gateway.manage.making import base_of

        catalogue = catalogue_of(args)
        try:
            name = store(catalogue, args.name, base_of(catalogue, args.source, WHERE), WHERE)
        except RequestError as error:
            raise ConfigError(error.what, where=error.where, fix=error.fix) from error
        print(f"{args.source} is also {name} now.")
        return 0

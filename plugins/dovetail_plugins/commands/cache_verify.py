"""`dovetail cache verify`: reads KV blocks or packed weights and checks their digests."""

from __future__ import annotations

import argparse

from dovetail.interfaces.command import Command
from dovetail.interfaces.plugin import Info
from dovetail_plugins.commands.cache_ls import add_folder, stores_of


class CacheVerifyCommand(Command):
    """`dovetail cache verify`."""

    info = Info(summary="check every KV block of a folder, or packed weights")

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the folder, and whether to remove damaged files. Mutates: parser."""
        add_folder(parser)
        parser.add_argument(
            "--remove", action="store_true", help="remove the files that are damaged"
        )

    def run(self, args: argparse.Namespace) -> int:
        """Print the damaged files; return 1 if some were left, else 0. Raises: ConfigError"""
        num_whole, damaged = 0, 0
        for store in stores_of(args.folder):
            for block in store.blocks():
                try:
                    is_whole = block.is_whole()
                except FileNotFoundError:
                    continue  # another process has dropped it meanwhile
                num_whole += is_whole
                if not is_whole:
                    damaged += 1
                    print(f"damaged: {block.path}")
                    if args.remove:
                        block.path.unlink(missing_ok=True)
        what = f"{damaged} damaged ones {'are removed' if args.remove else 'are there'}"
        print(f"{num_whole} files are whole, {what}.")
        return 1 if damaged and not args.remove else 0

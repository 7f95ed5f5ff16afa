"""`dovetail cache rm`: removes KV blocks from a folder, or packed weights. They are made again."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dovetail.errors import ConfigError
from dovetail.interfaces.command import Command
from dovetail.interfaces.plugin import Info
from dovetail_plugins.commands.cache_ls import DAY_S, add_folder, stores_of
from dovetail_plugins.packed_weights.folder import cache_folder

if TYPE_CHECKING:
    from pathlib import Path

    from dovetail_plugins.block_files import BlockFiles
    from dovetail_plugins.packed_weights.stores import PackedModel

WHERE = "dovetail cache rm"


class CacheRmCommand(Command):
    """`dovetail cache rm`."""

    info = Info(
        summary="remove KV blocks or packed weights: of a model, unused for some time, or all"
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments that select blocks. Mutates: parser."""
        add_folder(parser)
        text = "only blocks of this model, as `dovetail cache ls` shows it"
        parser.add_argument("--model", metavar="MODEL", help=text)
        text = "only blocks that were last used more than DAYS days ago"
        parser.add_argument("--unused-days", type=float, metavar="DAYS", help=text)
        parser.add_argument("--all", action="store_true", help="all blocks")
        parser.add_argument("-y", "--yes", action="store_true", help="do not ask")

    def run(self, args: argparse.Namespace) -> int:
        """Ask, remove, and print how much was freed; return the exit status. Raises: ConfigError"""
        from dovetail_plugins.inspect.render import size

        if args.all == (args.model is not None or args.unused_days is not None):
            raise ConfigError(
                "nothing was chosen for removal.",
                where=WHERE,
                fix="give --model, --unused-days or both, or --all alone.",
            )
        stores = [one for one in stores_of(args.folder) if args.model in (None, one.model)]
        if args.model is not None and not stores:
            raise ConfigError(
                f"no blocks of {args.model} lie in {args.folder or cache_folder()}.",
                where=WHERE,
                fix="`dovetail cache ls` shows what is there.",
            )
        before_s = time.time() - (args.unused_days or 0.0) * DAY_S
        chosen = _chosen(stores, before_s)
        num_bytes = sum(num for _, num in chosen)
        question = (
            f"Remove {len(chosen)} files ({size(num_bytes)}) of {args.folder or cache_folder()}?"
        )
        if not args.yes and not _is_wanted(question):
            print("Nothing was removed.")
            return 1
        for path, _ in chosen:
            path.unlink(missing_ok=True)
        print(f"{len(chosen)} files are removed: {size(num_bytes)} are free again.")
        return 0


def _chosen(stores: Sequence[BlockFiles | PackedModel], before_s: float) -> list[tuple[Path, int]]:
    """Return the files last used before a time, with their sizes."""
    chosen = []
    for store in stores:
        for path in store.files():
            try:
                status = path.stat()
            except FileNotFoundError:
                continue
            if status.st_mtime <= before_s:
                chosen.append((path, status.st_size))
    return chosen


def _is_wanted(question: str) -> bool:
    """Return the user's answer. Raises: ConfigError if there is no terminal to ask on"""
    if not sys.stdin.isatty():
        raise ConfigError("nobody can be asked here.", where=WHERE, fix="add --yes.")
    return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")

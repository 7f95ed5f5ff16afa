"""`dovetail cache ls`: the models with KV blocks in a folder, or with packed weights."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dovetail.errors import ConfigError
from dovetail.interfaces.command import Command
from dovetail.interfaces.plugin import Info
from dovetail_plugins.commands._table import table_lines
from dovetail_plugins.packed_weights.folder import cache_folder

if TYPE_CHECKING:
    from dovetail_plugins.block_files import BlockFiles
    from dovetail_plugins.packed_weights.stores import PackedModel

COLUMNS = ("MODEL", "FILES", "SIZE", "LAST USED", "FOLDER")
DAY_S = 86_400


class CacheLsCommand(Command):
    """`dovetail cache ls`."""

    info = Info(summary="list the models with KV blocks in a folder, or with packed weights")

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the folder. Mutates: parser."""
        add_folder(parser)
        parser.add_argument("--json", action="store_true", help="print JSON")

    def run(self, args: argparse.Namespace) -> int:
        """Print the models; return the exit status. Raises: ConfigError"""
        from dovetail_plugins.inspect.render import size

        found = [facts_of(store) for store in stores_of(args.folder)]
        if args.json:
            print(json.dumps(found, indent=2, ensure_ascii=False))
            return 0
        if not found:
            print(f"Nothing is stored in {args.folder or cache_folder()}.")
            return 0
        rows = [COLUMNS, *(_row(facts, size(facts["bytes"])) for facts in found)]
        print("\n".join(table_lines(rows)))
        return 0


def add_folder(parser: argparse.ArgumentParser) -> None:
    """Add the folder argument of a `cache` subcommand. Mutates: parser."""
    text = (
        "the folder of a connector (kv_connector_extra_config.folder); by default the folder of "
        "packed weights (--weight-cache)"
    )
    parser.add_argument("folder", metavar="FOLDER", nargs="?", type=Path, help=text)


def stores_of(folder: Path | None) -> Sequence[BlockFiles | PackedModel]:
    """Return the block stores in a folder, one per model; packed weights by model if there is no
    folder. Raises: ConfigError"""
    from dovetail_plugins.block_files import stores_in

    if folder is None:
        from dovetail_plugins.packed_weights.stores import packed_models

        return packed_models(cache_folder())
    if not folder.is_dir():
        raise ConfigError(
            f"{folder} is not a folder.", where="dovetail cache", fix="check the path."
        )
    try:
        return stores_in(folder)
    except OSError as error:
        raise ConfigError(
            f"{folder} cannot be read: {error.strerror}.", where="dovetail cache"
        ) from error


def facts_of(store: BlockFiles | PackedModel) -> dict[str, Any]:
    """Return the facts of one model's blocks. Files that disappear meanwhile are not counted."""
    keys, num_bytes, used_s = set(), 0, 0.0
    for block in store.blocks():
        try:
            status = block.path.stat()
        except FileNotFoundError:
            continue
        keys.add(block.key)
        num_bytes += status.st_size
        used_s = max(used_s, status.st_mtime)
    return {
        "model": store.model,
        "blocks": len(keys),
        "bytes": num_bytes,
        "ranks": store.world_size,
        "used_s": used_s,
        "folder": str(store.root),
    }


def _row(facts: dict[str, Any], num_bytes: str) -> tuple[str, ...]:
    days = (time.time() - facts["used_s"]) / DAY_S
    used = "never" if not facts["used_s"] else f"{days:.1f} days ago"
    return facts["model"], str(facts["blocks"]), num_bytes, used, facts["folder"]

"""`dovetail keys ls`: the names, scopes and limits in a keys file."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from dovetail.interfaces.command import Command
from dovetail.interfaces.plugin import Info
from dovetail_plugins.commands._table import table_lines

if TYPE_CHECKING:
    from dovetail_plugins.gates._keys_file import Key

COLUMNS = ("NAME", "WEIGHT", "ADMIN", "MODELS", "FAMILIES", "LIMITS")


class KeysLsCommand(Command):
    """`dovetail keys ls`."""

    info = Info(summary="list the keys of a file, with their scopes and limits")

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the file. Mutates: parser."""
        from dovetail_plugins.commands.keys_add import add_file

        add_file(parser)
        parser.add_argument("--json", action="store_true", help="print JSON")

    def run(self, args: argparse.Namespace) -> int:
        """Print the keys; return the exit status. Raises: ConfigError"""
        import msgspec

        from dovetail_plugins.gates._keys_file import read_keys

        keys = read_keys(args.file)
        if args.json:
            print(json.dumps(msgspec.to_builtins(keys), indent=2))
            return 0
        print("\n".join(table_lines([COLUMNS, *map(_row, keys)])))
        return 0


def _row(key: Key) -> tuple[str, ...]:
    limits = {name: getattr(key.limits, name) for name in key.limits.__struct_fields__}
    words = [f"{name}={value}" for name, value in limits.items() if value is not None]
    words += [f"({pattern}: own limits)" for pattern in key.model_limits]
    return (
        key.name,
        f"{key.weight:g}",
        "yes" if key.admin else "no",
        " ".join(key.models) or "all",
        " ".join(key.families) or "all",
        " ".join(words) or "none",
    )

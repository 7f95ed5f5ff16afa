"""`dovetail usage`: what each owner used, out of the accounts on this machine."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from dovetail.errors import ConfigError, RequestError
from dovetail.interfaces.command import Command
from dovetail.interfaces.plugin import Info
from dovetail_plugins.commands._table import table_lines

if TYPE_CHECKING:
    from dovetail_plugins.accounts.report import Row

WHERE = "dovetail usage"
NUMBERS = ("requests", "prompt_tokens", "cached_tokens", "generated_tokens", "device_seconds")


class UsageCommand(Command):
    """`dovetail usage`."""

    info = Info(summary="show what each owner used (--stat-loggers accounts)")

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add what to show. Mutates: parser."""
        text = "divide by some of owner, model, day, with commas (default: all three)"
        parser.add_argument("--by", default="owner,model,day", metavar="PARTS", help=text)
        parser.add_argument("--owner", help="only this owner and its users")
        parser.add_argument("--model", help="only this model")
        parser.add_argument(
            "--start", default="", metavar="DAY", help="first day, 2026-12-31 (UTC)"
        )
        parser.add_argument("--end", default="~", metavar="DAY", help="last day")
        text = "the folder of the accounts (default: the user's state folder)"
        parser.add_argument("--folder", type=Path, help=text)
        parser.add_argument("--json", action="store_true", help="print JSON")

    def run(self, args: argparse.Namespace) -> int:
        """Print the rows; return the exit status. Raises: ConfigError"""
        import sqlite3

        import msgspec

        from dovetail_plugins.accounts import ledger, report, service

        folder = args.folder or service.usual_folder()
        if not (folder / ledger.FILE).is_file():
            raise ConfigError(
                f"{folder} has no accounts.",
                where=WHERE,
                fix="start a server with --stat-loggers accounts.",
            )
        try:
            parts = report.checked_parts(args.by, "--by")
            book = ledger.Ledger(folder)
            book.read_abandoned()
            rows = report.rows_of(
                book, by=parts, owner=args.owner, model=args.model, start=args.start, end=args.end
            )
        except RequestError as error:
            raise ConfigError(error.what, where=error.where, fix=error.fix) from error
        except (OSError, sqlite3.Error) as error:
            raise ConfigError(f"{folder} cannot be read: {error}.", where=WHERE) from error
        if args.json:
            print(json.dumps(msgspec.to_builtins(rows), indent=2))
        else:
            _print(parts, rows)
        return 0


def _print(parts: list[str], rows: list[Row]) -> None:
    columns = [*parts, *NUMBERS]
    table = [[name.upper().replace("_", " ") for name in columns]]
    table += [[str(getattr(row, name)) for name in columns] for row in rows]
    print("\n".join(table_lines(table, right=range(len(parts), len(columns)))))

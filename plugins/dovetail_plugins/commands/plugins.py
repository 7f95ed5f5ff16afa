"""`dovetail plugins`: the plugin registry on the command line.

`list` reads metadata without importing plugins (with --status it loads each), `show` loads the
named plugins, `check` runs the conformance kit on them.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from dovetail import registry
from dovetail.errors import ConfigError
from dovetail.interfaces.command import Command
from dovetail.interfaces.plugin import Info
from dovetail.registry import Entry
from dovetail.registry.options import options_place
from dovetail_plugins.commands._table import table_lines


class PluginsCommand(Command):
    """`dovetail plugins`."""

    info = Info(summary="list, describe and check plugins")

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments of plugins. Mutates: parser."""
        parser.add_argument(
            "action",
            choices=("list", "show", "check"),
            help="list: names and origins; show: what they declare; check: run the conformance kit",
        )
        parser.add_argument(
            "plugin",
            nargs="*",
            metavar="KIND[:NAME]",
            help="a kind, or one plugin of it: tool_parser:hermes, tool_parser:hermes@package, "
            "tool_parser:package.module:Class, tool_parser:file.py:Class; none: all",
        )
        parser.add_argument("--json", action="store_true", help="print JSON")
        parser.add_argument(
            "--status", action="store_true", help="list: load each plugin and say whether it works"
        )
        parser.add_argument(
            "--clause",
            action="append",
            default=[],
            help="check: run only this clause of the kit, as its report names it; may be repeated",
        )
        parser.add_argument(
            "--traceback", action="store_true", help="check: show where each failed clause failed"
        )

    def run(self, args: argparse.Namespace) -> int:
        """Run one action; return the exit status. Raises: ConfigError for an unknown name."""
        if args.action == "list":
            return _list(args.plugin, as_json=args.json, with_status=args.status)
        if args.action == "show":
            return _show(args.plugin, as_json=args.json)
        return _check(args.plugin, args.clause, args)


def chosen_entries(words: Sequence[str]) -> list[Entry]:
    """Return the entries selected by KIND and KIND:NAME words; all entries without words.

    Raises: ConfigError for an unknown kind or name.
    """
    entries: list[Entry] = []
    for word in words or list(registry.KINDS):
        kind, _, spec = word.partition(":")
        registry.admin.kind_named(kind)
        entries += [registry.find(kind, spec)] if spec else registry.entries(kind)
    return entries


def _list(words: Sequence[str], *, as_json: bool, with_status: bool) -> int:
    rows = [_row(entry, with_status) for entry in chosen_entries(words)]
    for sentence in registry.admin.lost():
        print(sentence, file=sys.stderr)
    if as_json:
        print(json.dumps(rows, indent=2))
        return 0
    columns = ("kind", "name", "distribution", "status", "target")
    _print_table(rows, [column for column in columns if rows and column in rows[0]])
    for row in rows:
        if row.get("reason"):
            print(f"{row['kind']}:{row['name']}: {row['reason']}")
    return 0


def _row(entry: Entry, with_status: bool) -> dict[str, Any]:
    row = asdict(entry)
    if with_status:
        status = registry.status(entry)
        row |= {"status": status.word, "reason": status.reason}
    return row


def _print_table(rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> None:
    table = [[str(row[column]) for column in columns] for row in rows]
    for line in table_lines(table):
        print(line)


def _show(words: Sequence[str], *, as_json: bool) -> int:
    facts = [registry.admin.describe_entry(entry) for entry in chosen_entries(words)]
    if as_json:
        print(json.dumps(facts, indent=2, default=str))
        return 0
    print("\n\n".join(_shown(fact) for fact in facts))
    return 0


def _shown(facts: dict[str, Any]) -> str:
    """Return one plugin as text: its name, then a line per nonempty fact."""
    lines = [f"{facts['kind']}:{facts['name']}"]
    for name, value in facts.items():
        if name in ("kind", "name", "options") or value in ("", None, [], {}):
            continue
        lines.append(f"  {name.replace('_', ' ') + ':':<20}{_value_text(value)}")
    place = options_place(registry.admin.kind_named(facts["kind"]), facts["name"])
    for option in facts.get("options", []):
        unit = f" {option['unit']}" if option["unit"] else ""
        default = "empty" if option["default"] == "" else _value_text(option["default"])
        lines.append(
            f"  {place}.{option['name']} {option['type']}{unit}"
            f" (default {default}): {option['help']}"
        )
    return "\n".join(lines)


def _value_text(value: Any) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{key} ({text})" for key, text in value.items())
    if isinstance(value, list):
        return ", ".join(str(item) for item in value)
    return str(value)


def _check(words: Sequence[str], clauses: Sequence[str], args: argparse.Namespace) -> int:
    try:
        import pytest  # noqa: F401  (the kit is a pytest plugin)
    except ImportError as error:
        raise ConfigError(
            "the conformance kit runs on pytest, which is not installed.",
            where="dovetail plugins check",
            fix='run `pip install "dovetail-llm[plugin-check]"`.',
        ) from error
    from dovetail_testing.check import check

    chosen_entries(words)  # an unknown name is reported here, not in a test report
    return check(words, clauses=clauses, as_json=args.json, shows_traceback=args.traceback)

"""`dovetail config show`: the settings that result from flags, files, variables, model and machine.

Reads the model's settings and its tokenizer, but no weights.
"""

from __future__ import annotations

import argparse
import json
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dovetail.interfaces.command import Command
from dovetail.interfaces.plugin import Info
from dovetail_plugins.commands._serve_flags import SERVE_FLAGS, add_serve_arguments

if TYPE_CHECKING:
    from dovetail.config.report.show import Shown

VALUE_WIDTH = 44


class ConfigShowCommand(Command):
    """`dovetail config show`."""

    info = Info(summary="show every setting as it will be, and where it comes from")
    common = SERVE_FLAGS

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments of serve and of the display. Mutates: parser."""
        parser.add_argument("--origin", action="store_true", help="say where each value comes from")
        parser.add_argument(
            "--json", action="store_true", help="print JSON, always with every setting"
        )
        parser.add_argument(
            "--all", action="store_true", help="show settings too that are just at their default"
        )
        parser.add_argument(
            "--request",
            action="store_true",
            help="show how a request without options is sampled, and where that comes from",
        )
        add_serve_arguments(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Print the settings; return the exit status. Raises: ConfigError, as serve does"""
        from dovetail.config.parse.parse_config import parse_config
        from dovetail.config.report.show import facts, resolved, rows_of, sampling_rows
        from dovetail.config.resolve import resolve
        from dovetail.server.launch.settings import found
        from dovetail_plugins.inspect.look_ahead import look_ahead

        config = parse_config(args)
        spec = resolve(config)
        if args.request:
            return _show_request(sampling_rows(config, spec), is_json=args.json)
        decided = {**resolved(config, spec), **found(config, spec, look_ahead(config, spec))}
        rows = rows_of(config, decided)
        if args.json:
            print(json.dumps(as_json(rows, facts(spec), with_origin=args.origin), indent=2))
        else:
            lines = as_table(rows, facts(spec), with_origin=args.origin, with_defaults=args.all)
            print("\n".join(lines))
        return 0


def _show_request(rows: Sequence[Shown], *, is_json: bool) -> int:
    if is_json:
        values = {row.name: {"value": row.value, "origin": row.origin} for row in rows}
        print(json.dumps({"request": values}, indent=2))
        return 0
    for row in rows:
        open_end = "all that fits" if row.name == "max_tokens" and row.value is None else row.value
        print("\n".join(_lines(row.name, open_end, row.origin, max(len(r.name) for r in rows) + 2)))
    return 0


def as_json(rows: Sequence[Shown], facts: dict[str, Any], *, with_origin: bool) -> dict[str, Any]:
    """Return {"settings": {name: value, or {value, origin}}, "facts": {name: value}}."""
    settings: dict[str, Any] = {}
    for row in rows:
        value = {"value": row.value, "origin": row.origin} if with_origin else row.value
        settings[row.name] = value
    return {"settings": settings, "facts": facts}


def as_table(
    rows: Sequence[Shown], facts: dict[str, Any], *, with_origin: bool, with_defaults: bool
) -> list[str]:
    """Return lines by group: the settings that were chosen, or all with `with_defaults`."""
    shown = [row for row in rows if with_defaults or row.is_chosen]
    width = max(map(len, [*facts, *(row.name for row in shown)])) + 2
    lines: list[str] = []
    for row in shown:
        if row.group not in lines:
            lines += ["", row.group] if lines else [row.group]
        value = _sized(row.name, row.value)
        lines += _lines(row.name, value, row.origin if with_origin else "", width)
    lines += ["", "what follows from them"]
    for name, value in facts.items():
        lines += _lines(name, value, "", width)
    if len(shown) < len(rows):
        lines += ["", f"{len(rows) - len(shown)} more are at their defaults: --all shows them."]
    return lines


def _lines(name: str, value: Any, origin: str, width: int) -> list[str]:
    """Return the lines of one setting; a long value is wrapped within its column."""
    text = value_text(value)
    cells = textwrap.wrap(text, VALUE_WIDTH, break_on_hyphens=False, break_long_words=False) or [""]
    first = f"  {name:<{width}}{cells[0]:<{VALUE_WIDTH}}  {origin}".rstrip()
    return [first, *(f"{'':<{width + 2}}{cell}" for cell in cells[1:])]


def _sized(name: str, value: Any) -> Any:
    """Return a number of bytes with its size in MiB; other values unchanged."""
    if name.endswith("_bytes") and isinstance(value, int):
        return f"{value} ({value / 2**20:.4g} MiB)"
    return value


def value_text(value: Any) -> str:
    """Return a value as a user would type it; JSON text stays unchanged."""
    from dovetail.config.report.describe import value_text as plain

    return plain(tuple(map(str, value)) if isinstance(value, list | tuple) else value)

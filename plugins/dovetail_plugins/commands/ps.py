"""`dovetail ps`: this user's servers on this machine."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from dovetail.interfaces.command import Command
from dovetail.interfaces.plugin import Info

if TYPE_CHECKING:
    from dovetail.server.launch.records import ServerRecord

COLUMNS = ("PID", "NAME", "URL", "UPTIME", "MEMORY")
MODEL_COLUMNS = ("PID", "MODEL", "STATE", "NEEDS", "LEAVES IN")
UNLOADED = "unloaded"
YEAR_DAYS = 365


class PsCommand(Command):
    """`dovetail ps`."""

    info = Info(summary="list the servers that run here, and their loaded models")

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the argument of the display. Mutates: parser."""
        parser.add_argument("--json", action="store_true", help="print JSON")

    def run(self, args: argparse.Namespace) -> int:
        """Print the servers; return the exit status."""
        from dovetail_plugins.commands._running import running_servers
        from dovetail_plugins.inspect.render import size

        found = [_facts(record) for record in running_servers()]
        if args.json:
            print(json.dumps(found, indent=2, ensure_ascii=False))
            return 0
        if not found:
            print("No server runs here. `dovetail serve MODEL` starts one.")
            return 0
        _print_table([COLUMNS, *(_row(facts, size(facts["memory_bytes"])) for facts in found)])
        rows = [row for facts in found for row in _model_rows(facts, size)]
        if rows:
            print()
            _print_table([MODEL_COLUMNS, *rows])
        return 0


def _print_table(rows: Sequence[tuple[str, ...]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip())


def _model_rows(facts: dict[str, Any], size: Callable[[int], str]) -> Iterator[tuple[str, ...]]:
    """Yield a row for each model of a server that holds memory or is about to."""
    for model in facts["models"]:
        if model["state"] != UNLOADED:
            need = size(model["needed_bytes"]) if model["needed_bytes"] else ""
            until = _in_words(model["expires_at"])
            yield (str(facts["pid"]), model["name"], model["state"], need, until)


def _in_words(expires_at: str | None) -> str:
    """Return when a model leaves memory, from now on."""
    from datetime import UTC, datetime

    if not expires_at:
        return ""
    left = datetime.fromisoformat(expires_at) - datetime.now(UTC)
    return "stays" if left.days > YEAR_DAYS else uptime(max(0, round(left.total_seconds())))


def _facts(record: ServerRecord) -> dict[str, Any]:
    import time

    from dovetail_plugins.commands._running_models import models_of

    return {
        "pid": record.pid,
        "names": list(record.names),
        "url": record.url,
        "path": record.path,
        "uptime_s": round(time.time() - record.started_s),
        "memory_bytes": memory_bytes(record.pid),
        "models": [
            {
                "name": card["id"],
                "state": card["state"],
                **{name: card.get(name) for name in ("size_bytes", "needed_bytes", "expires_at")},
            }
            for card in models_of(record)
            if "state" in card and not card.get("parent")
        ],
    }


def memory_bytes(pid: int) -> int:
    """Return the RAM used by a server's processes in bytes; 0 if they have ended."""
    import psutil

    try:
        process = psutil.Process(pid)
        family = [process, *process.children(recursive=True)]
    except psutil.Error:
        return 0
    total = 0
    for one in family:
        try:
            total += one.memory_info().rss
        except psutil.Error:  # it has just ended
            continue
    return total


def _row(facts: dict[str, Any], size: str) -> tuple[str, ...]:
    names = ", ".join(facts["names"])
    return (str(facts["pid"]), names, facts["url"], uptime(facts["uptime_s"]), size)


def uptime(seconds: int) -> str:
    """Return a duration in its two largest units."""
    units = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
    parts: list[str] = []
    for unit, length in units:
        count, seconds = divmod(seconds, length)
        if count or (parts and unit != "s"):
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2]) or "0 s"

"""`dovetail ps`: this user's servers on this machine."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from dovetail.interfaces.command import Command
from dovetail.interfaces.plugin import Info

if TYPE_CHECKING:
    from dovetail.server.launch.records import ServerRecord

COLUMNS = ("PID", "NAME", "URL", "UPTIME", "MEMORY")


class PsCommand(Command):
    """`dovetail ps`."""

    info = Info(summary="list the servers that run here")

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
        rows = [COLUMNS, *(_row(facts, size(facts["memory_bytes"])) for facts in found)]
        widths = [max(len(row[i]) for row in rows) for i in range(len(COLUMNS))]
        for row in rows:
            print("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip())
        return 0


def _facts(record: ServerRecord) -> dict[str, Any]:
    import time

    return {
        "pid": record.pid,
        "names": list(record.names),
        "url": record.url,
        "path": record.path,
        "uptime_s": round(time.time() - record.started_s),
        "memory_bytes": memory_bytes(record.pid),
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

"""`dovetail stop`: ends a server on this machine gracefully: running requests may finish first."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from dovetail.errors import ConfigError, DovetailError
from dovetail.interfaces.command import Command
from dovetail.interfaces.plugin import Info

if TYPE_CHECKING:
    from dovetail.server.launch.records import ServerRecord

WHERE = "dovetail stop"
TIMEOUT_S = 30.0


class StopCommand(Command):
    """`dovetail stop`."""

    info = Info(summary="stop a server that runs here")

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the server and the time limit. Mutates: parser."""
        text = (
            "name or process id, as `dovetail ps` shows them; may be left out where one server runs"
        )
        parser.add_argument("server", nargs="?", metavar="SERVER", help=text)
        parser.add_argument("--all", action="store_true", help="stop every server")
        text = f"how long to wait for the end; default {TIMEOUT_S:g}"
        parser.add_argument("--timeout", type=float, default=TIMEOUT_S, metavar="S", help=text)

    def run(self, args: argparse.Namespace) -> int:
        """Stop, wait, report; return the exit status.

        Raises: ConfigError; DovetailError if a server does not end in time
        """
        from dovetail_plugins.commands._running import running_servers

        for record in chosen(running_servers(), args.server, is_all=args.all):
            _stop(record, args.timeout)
            print(f"stopped {', '.join(record.names)} ({record.url}, process {record.pid})")
        return 0


def chosen(
    records: list[ServerRecord], asked: str | None, *, is_all: bool = False
) -> list[ServerRecord]:
    """Return the selected servers. Raises: ConfigError if there is none, or several without
    --all"""
    meant = [r for r in records if asked is None or asked in (str(r.pid), *r.names)]
    if not records:
        raise ConfigError("no server runs here.", where=WHERE)
    shown = "; ".join(f"{r.pid} ({', '.join(r.names)}, {r.url})" for r in records)
    if not meant:
        raise ConfigError(f"no server {asked} runs here.", where=WHERE, fix=f"those are {shown}.")
    if len(meant) > 1 and not is_all:
        fix = f"name one by its process id, or use --all: {shown}."
        raise ConfigError(f"{len(meant)} servers could be meant.", where=WHERE, fix=fix)
    return meant


def _stop(record: ServerRecord, timeout_s: float) -> None:
    import psutil

    from dovetail_plugins.commands._running import process_of

    process = process_of(record)
    if process is None:
        return
    try:
        process.terminate()
        process.wait(timeout_s)
    except psutil.NoSuchProcess:
        return
    except psutil.TimeoutExpired as error:
        raise DovetailError(
            f"process {record.pid} still finishes requests after {timeout_s:g} s.",
            where=WHERE,
            fix="wait, or run the command again: a second signal ends it at once.",
        ) from error

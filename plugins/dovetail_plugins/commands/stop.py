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

    info = Info(summary="stop a server that runs here, or unload one of its models")

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the server and the time limit. Mutates: parser."""
        text = (
            "name or process id, as `dovetail ps` shows them; may be left out where one server "
            "runs; or a model that a server loaded by name, which is unloaded"
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

        records = running_servers()
        if args.server and _unloaded(records, args.server):
            return 0
        for record in chosen(records, args.server, is_all=args.all):
            _stop(record, args.timeout)
            print(f"stopped {', '.join(record.names)} ({record.url}, process {record.pid})")
        return 0


def _unloaded(records: list[ServerRecord], name: str) -> bool:
    """Unload a model that is one of several of a server; return whether there is one."""
    from dovetail_plugins.commands._running_models import offering, unload

    if any(name in (str(record.pid), *record.names) for record in records):
        return False
    found = [record for record in offering(records, name) if unload(record, name)]
    for record in found:
        print(f"unloaded {name} ({record.url}, process {record.pid})")
    return bool(found)


def chosen(
    records: list[ServerRecord], name: str | None, *, is_all: bool = False
) -> list[ServerRecord]:
    """Return the selected servers. Raises: ConfigError if there is none, or several without
    --all"""
    matches = [r for r in records if name is None or name in (str(r.pid), *r.names)]
    if not records:
        raise ConfigError("no server runs here.", where=WHERE)
    shown = "; ".join(f"{r.pid} ({', '.join(r.names)}, {r.url})" for r in records)
    if not matches:
        raise ConfigError(f"no server {name} runs here.", where=WHERE, fix=f"those are {shown}.")
    if len(matches) > 1 and not is_all:
        fix = f"name one by its process id, or use --all: {shown}."
        raise ConfigError(f"{len(matches)} servers could be meant.", where=WHERE, fix=fix)
    return matches


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

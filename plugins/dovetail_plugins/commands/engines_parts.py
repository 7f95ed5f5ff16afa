"""`dovetail engines list`, `drain`, `remove` and `add`: requests to a server's /engines."""

from __future__ import annotations

import argparse
import json
import os
from typing import Any

from dovetail.interfaces.command import Command
from dovetail.interfaces.plugin import Info
from dovetail_plugins.commands._table import table_lines

COLUMNS = ("ENGINE", "STATE", "RUNNING", "WAITING", "RESTARTS", "REASON")
DRAIN_S = 60.0


class ListCommand(Command):
    """`dovetail engines list`."""

    info = Info(summary="list the engines of a server with --enable-dev-endpoints")

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the server. Mutates: parser."""
        _add_server(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Print the engines; return the exit status. Raises: ServerError"""
        return _shown(args, "GET", "/engines")


class DrainCommand(Command):
    """`dovetail engines drain`."""

    info = Info(summary="give an engine no new requests, and end it once it has none")

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the engine, the server and the bound. Mutates: parser."""
        _add_engine(parser)
        text = f"after this time it is ended with the requests it has; default {DRAIN_S:g}"
        parser.add_argument("--timeout", type=float, default=DRAIN_S, metavar="S", help=text)

    def run(self, args: argparse.Namespace) -> int:
        """Wait for the end; return the exit status. Raises: ServerError"""
        body = {"engine": args.engine, "timeout": args.timeout}
        return _shown(args, "POST", "/engines/drain", body, args.timeout)


class RemoveCommand(Command):
    """`dovetail engines remove`."""

    info = Info(summary="end an engine now; its requests run again in others")

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the engine and the server. Mutates: parser."""
        _add_engine(parser)

    def run(self, args: argparse.Namespace) -> int:
        """End it; return the exit status. Raises: ServerError"""
        return _shown(args, "POST", "/engines/remove", {"engine": args.engine})


class AddCommand(Command):
    """`dovetail engines add`."""

    info = Info(summary="start an engine again that was removed or given up")

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the engine and the server. Mutates: parser."""
        _add_engine(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Wait until it takes requests; return the exit status. Raises: ServerError"""
        return _shown(args, "POST", "/engines/add", {"engine": args.engine})


def _add_engine(parser: argparse.ArgumentParser) -> None:
    text = "its number, as `dovetail engines list` shows it"
    parser.add_argument("engine", type=int, metavar="ENGINE", help=text)
    _add_server(parser)


def _add_server(parser: argparse.ArgumentParser) -> None:
    from dovetail_plugins.commands._client import DEFAULT_URL

    text = f"base address; default {DEFAULT_URL}"
    parser.add_argument("--url", default=DEFAULT_URL, metavar="URL", help=text)
    parser.add_argument("--api-key", metavar="KEY", help="key; default $OPENAI_API_KEY")
    parser.add_argument("--json", action="store_true", help="print JSON")


def _shown(
    args: argparse.Namespace, method: str, path: str, body: Any = None, wait_s: float = 0.0
) -> int:
    """Send a request and print the engines after it; return the exit status."""
    from dovetail_plugins.commands._client import Client

    client = Client(args.url, args.api_key or os.environ.get("OPENAI_API_KEY"))
    engines = client.at_root(method, path, body, wait_s=wait_s).get("engines", [])
    if args.json:
        print(json.dumps(engines, indent=2, ensure_ascii=False))
    else:
        print("\n".join(table_lines([COLUMNS, *map(_row, engines)])))
    return 0


def _row(engine: dict[str, Any]) -> tuple[str, ...]:
    names = ("engine", "state", "running", "waiting", "restarts")
    return (*(str(engine.get(name, 0)) for name in names), str(engine.get("reason", "")))

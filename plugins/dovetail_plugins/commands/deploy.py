"""`dovetail deploy`: has a supervised server replaced by a new one, and waits for that."""

from __future__ import annotations

import argparse
import os
import time

from dovetail.errors import DovetailError
from dovetail.interfaces.command import Command
from dovetail.interfaces.plugin import Info

LOOK_S = 0.5


class DeployCommand(Command):
    """`dovetail deploy`."""

    info = Info(summary="replace the server of `dovetail supervise`, with its settings read anew")

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the server and the bound. Mutates: parser."""
        from dovetail_plugins.commands._client import DEFAULT_URL

        text = f"base address; default {DEFAULT_URL}"
        parser.add_argument("--url", default=DEFAULT_URL, metavar="URL", help=text)
        parser.add_argument("--api-key", metavar="KEY", help="key; default $OPENAI_API_KEY")
        text = "how long to wait for the new server, which starts all the same; default 3600"
        parser.add_argument("--timeout", type=float, default=3600.0, metavar="S", help=text)

    def run(self, args: argparse.Namespace) -> int:
        """Wait until the new server serves; return the exit status. Raises: ServerError,
        DovetailError if it does not start"""
        from dovetail_plugins.commands._client import Client

        client = Client(args.url, args.api_key or os.environ.get("OPENAI_API_KEY"))
        before = client.at_root("POST", "/deploy")
        deadline_s = time.monotonic() + args.timeout
        while True:
            found = client.at_root("GET", "/deploy")
            if found["asked"] > before["asked"] and found["state"] != "starting":
                break
            if time.monotonic() > deadline_s:
                raise DovetailError(f"no new server within {args.timeout:g} s.", where="--timeout")
            time.sleep(LOOK_S)
        if found["state"] == "failed":
            what = f"the new server did not start, and the old one goes on: {found['reason']}"
            raise DovetailError(what)
        print(f"server {found['generation']} serves")
        return 0

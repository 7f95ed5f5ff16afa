"""The server behind `dovetail run`, started by `cli.server_process`, and behind a gateway.

Its boot message is the fields of a Config.
"""

from __future__ import annotations

from typing import Any

from dovetail import process
from dovetail.cli.main import guarded


def main() -> int:
    """Serve by the boot message; return the exit status."""
    return guarded(_serve)


def _serve() -> int:
    from dovetail.config.config import Config
    from dovetail.config.rules.checks import checked

    config = checked(Config.from_fields(process.read_boot(dict[str, Any])))
    from dovetail.server.launch.serve import run

    return run(config)

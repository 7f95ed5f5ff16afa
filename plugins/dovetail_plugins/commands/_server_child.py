"""The server process of `dovetail run` (see `_server_process`), and of a gateway's models.

Its boot message has the fields of a Config.
"""

from __future__ import annotations

from typing import Any

from dovetail.cli.main import guarded
from dovetail.processes import process


def main() -> int:
    """Serve as the boot message says; return the exit status."""
    return guarded(_serve)


def _serve() -> int:
    from dovetail.config.config import Config
    from dovetail.config.rules.checks import checked

    config = checked(Config.from_fields(process.read_boot(dict[str, Any])))
    from dovetail_plugins.commands._engine_ahead import engine_ahead

    with engine_ahead(config):
        from dovetail.server.launch.serve import run

        return run(config)

"""`dovetail supervise`: `dovetail serve` in a process that can replace the server while it serves.

SIGHUP, or `dovetail deploy`, starts a new server next to the old one, with the same command line
and what the configuration file has then.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from dovetail.interfaces.command import Command
from dovetail.interfaces.plugin import Info
from dovetail_plugins.commands._serve_flags import SERVE_FLAGS, add_serve_arguments

if TYPE_CHECKING:
    from dovetail.config.config import Config


class SuperviseCommand(Command):
    """`dovetail supervise`."""

    info = Info(summary="serve as `dovetail serve` does, and replace the server without a gap")
    common = SERVE_FLAGS

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add what `dovetail serve` takes. Mutates: parser."""
        add_serve_arguments(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Serve until a signal arrives; return the exit status. Raises: ConfigError."""
        import os

        from dovetail.config.parse.flags import config_of
        from dovetail.errors import ConfigError
        from dovetail.observability.configured_log import set_log_up
        from dovetail.server.launch.sockets import listening
        from dovetail_plugins.supervised.supervisor import Supervisor

        def read() -> Config:
            return config_of(args, environ=os.environ)

        config = read()
        if config.parallel.headless:
            raise ConfigError(
                "engines without an HTTP server are not replaced.",
                where="--headless",
                fix="use `dovetail serve`.",
            )
        set_log_up(config)
        with listening(config.frontend) as sock:
            return Supervisor(vars(args), sock, lambda: read().frontend.shutdown_timeout).run()

"""`dovetail supervise`: `dovetail serve` in a process that can replace the server while it serves.

SIGHUP, or `dovetail deploy`, starts a new server next to the old one, with the same command line
and what the configuration file has then.
"""

from __future__ import annotations

import argparse

from dovetail.interfaces.command import Command
from dovetail.interfaces.plugin import Info
from dovetail_plugins.commands._serve_flags import SERVE_FLAGS, add_serve_arguments


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

        config = config_of(args, model=None, environ=os.environ)
        if config.parallel.headless:
            raise ConfigError(
                "engines without an HTTP server are not replaced.",
                where="--headless",
                fix="use `dovetail serve`.",
            )
        set_log_up(config)
        with listening(config.frontend) as sock:
            drain_s = config.frontend.shutdown_timeout
            return Supervisor(vars(args), sock, drain_s).run()

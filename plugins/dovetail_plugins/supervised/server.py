"""A supervised server's process: `dovetail serve` on a socket that its supervisor has bound.

The configuration file is read here, so a later server gets what stands in it then.
"""

from __future__ import annotations

import argparse
import socket
from typing import Any

import msgspec

from dovetail.cli.main import guarded
from dovetail.processes import process
from dovetail.server.launch.sockets import HANDED_OVER

MODULE = __name__


class ServerBoot(msgspec.Struct, frozen=True, kw_only=True):
    """The parsed arguments of `dovetail serve`, and the descriptor of its socket."""

    arguments: dict[str, Any]
    socket_fd: int


def main() -> int:
    """Serve as the boot message says; return the exit status."""
    return guarded(_serve)


def _serve() -> int:
    from dovetail_plugins.commands.serve import ServeCommand

    boot = process.read_boot(ServerBoot)
    sock = socket.socket(fileno=boot.socket_fd)
    sock.set_inheritable(True)
    HANDED_OVER.append(sock)
    return ServeCommand(None).run(argparse.Namespace(**boot.arguments))

"""`dovetail route`: one address for servers that compute prompts and servers that answer."""

from __future__ import annotations

import argparse
import socket

HELP = "send each request to a prefill server and then to a decode server"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the servers and the address. Mutates: parser."""
    for name, what in (("prefill", "compute prompts"), ("decode", "make the answers")):
        parser.add_argument(
            f"--{name}",
            nargs="+",
            required=True,
            metavar="URL",
            help=f"servers that {what}, each started with a KV connector such as p2p",
        )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen at")
    parser.add_argument("--port", type=int, default=8080, help="port to listen at")
    parser.add_argument(
        "--max-body-bytes", type=int, default=1 << 26, help="largest body that is taken"
    )


def run(args: argparse.Namespace) -> int:
    """Serve until a signal says to stop; return the exit status. Raises: ConfigError"""
    import logging
    import time

    import uvicorn

    from dovetail.errors import ConfigError
    from dovetail.gateway.two_halves import TwoHalves
    from dovetail.gateway.upstream import upstream_of
    from dovetail.observability.logging import setup

    began_s = time.monotonic()
    setup("info")
    if not 0 <= args.port < 1 << 16:
        raise ConfigError(f"{args.port} is not a port.", where="--port")
    app = TwoHalves(
        [upstream_of(url, "--prefill") for url in args.prefill],
        [upstream_of(url, "--decode") for url in args.decode],
        max_body_bytes=args.max_body_bytes,
    )
    sock = _listening(args.host, args.port)
    host, port = sock.getsockname()[:2]
    name = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    took_s = time.monotonic() - began_s
    logging.getLogger("dovetail.route").info("ready in %.1f s at http://%s", took_s, name)
    config = uvicorn.Config(app, log_config=None, log_level=None, access_log=False, lifespan="off")
    server = uvicorn.Server(config)
    server.run(sockets=[sock])
    return 0 if server.started else 1


def _listening(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raises: ConfigError"""
    from dovetail.errors import ConfigError

    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise ConfigError(
            f"{host} port {port} cannot be listened at: {error.strerror or error}.",
            where="--port",
            fix="name an address of this machine, and a port that is free.",
        ) from error

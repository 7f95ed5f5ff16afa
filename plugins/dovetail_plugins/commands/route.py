"""`dovetail route`: one address for prefill servers and decode servers."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Any

from dovetail.interfaces.command import Command
from dovetail.interfaces.plugin import Info

if TYPE_CHECKING:
    import socket

    import uvicorn

    from dovetail.config.sections.frontend import FrontendConfig

KEY_VARIABLE = "DOVETAIL_API_KEY"
TLS_FLAGS = ("ssl_certfile", "ssl_keyfile", "ssl_ca_certs", "ssl_cert_reqs", "ssl_ciphers")
"""The TLS flags of `dovetail serve`, with the same names."""


class RouteCommand(Command):
    """`dovetail route`."""

    info = Info(summary="send each request to a prefill server and then to a decode server")

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the servers, the address, and the access rules. Mutates: parser."""
        from dovetail.config.config import flags

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
        for name in ("allowed_hosts", "allowed_origins"):
            flag = flags()[name]
            parser.add_argument(
                f"--{name.replace('_', '-')}",
                nargs="+",
                metavar=flag.meta.metavar,
                help=flag.meta.help,
            )
        largest = flags()["max_body_bytes"]
        parser.add_argument(
            "--max-body-bytes", type=int, default=largest.default, help=largest.meta.help
        )
        parser.add_argument(
            "--kv-events-config",
            nargs="+",
            default=(),
            metavar="JSON",
            help="that of the prefill servers, one for all or one for each: a prompt goes where "
            "its prefix is cached, unless that server is too busy",
        )
        parser.add_argument(
            "--block-size", type=int, default=16, help="tokens of a block of the prefill servers"
        )
        parser.add_argument(
            "--api-key",
            nargs="+",
            metavar="KEY",
            help="API keys; clients must send one of them, which is handed on to the servers "
            f"(default: ${KEY_VARIABLE})",
        )
        parser.add_argument(
            "--log-format", default="text", help=flags()["log_format"].meta.help, metavar="NAME"
        )
        for name in TLS_FLAGS:
            flag = flags()[name]
            parser.add_argument(
                f"--{name.replace('_', '-')}",
                type=int if isinstance(flag.default, int) else str,
                default=flag.default,
                metavar=flag.meta.metavar or "NUMBER",
                help=flag.meta.help,
            )

    def run(self, args: argparse.Namespace) -> int:
        """Serve until a signal arrives; return the exit status. Raises: ConfigError"""
        import logging
        import time

        from dovetail import registry
        from dovetail.observability.logging import setup
        from dovetail.server.launch.event_loop import run_loop
        from dovetail.server.launch.serve import stopped_while_starting
        from dovetail.server.launch.sockets import listening, url_of

        began_s = time.monotonic()
        setup("info", form=registry.admin.value_of("log_format", args.log_format))
        frontend = frontend_of(args)
        config = server_of(args, frontend)
        with listening(frontend) as sock:
            sock.listen()
            took_s = time.monotonic() - began_s
            name = url_of(sock, has_tls=frontend.ssl_certfile is not None)
            logging.getLogger("dovetail.route").info("ready in %.1f s at %s", took_s, name)
            return run_loop(_serve(config, sock), stopped_while_starting)


async def _serve(config: uvicorn.Config, sock: socket.socket) -> int:
    """Answer until a signal arrives; return the exit status."""
    from dovetail.server.launch.http_server import HttpServer

    server = HttpServer(config)
    server.end_on_signals()
    await server.serve(sockets=[sock])
    return 0 if server.started else 1


def frontend_of(args: argparse.Namespace) -> FrontendConfig:
    """Return the flags as a server's FrontendConfig. Raises: ConfigError"""
    from dovetail.config.sections.frontend import FrontendConfig
    from dovetail.errors import ConfigError

    if not 0 <= args.port < 1 << 16:
        raise ConfigError(f"{args.port} is not a port.", where="--port")
    given = args.api_key
    keys = tuple(given if given is not None else filter(None, [os.environ.get(KEY_VARIABLE)]))
    if any(not key.strip() for key in keys):
        raise ConfigError("a key is empty.", where="--api-key", fix="give one, or leave it out.")
    if args.ssl_cert_reqs not in (0, 1, 2):
        raise ConfigError(f"{args.ssl_cert_reqs} is not 0, 1 or 2.", where="--ssl-cert-reqs")
    if args.max_body_bytes < 1:
        raise ConfigError(f"{args.max_body_bytes} is not above 0.", where="--max-body-bytes")
    others: dict[str, Any] = {name: getattr(args, name) for name in TLS_FLAGS}
    if args.allowed_origins:
        others["allowed_origins"] = tuple(args.allowed_origins)
    all_hosts = ["*"] if "*" in (args.allowed_origins or ()) else []  # for any origin's pages
    return FrontendConfig(
        host=args.host,
        port=args.port,
        api_key=keys,
        max_body_bytes=args.max_body_bytes,
        enable_request_id_headers=True,
        disable_uvicorn_access_log=True,
        allowed_hosts=(*(args.allowed_hosts or ()), *all_hosts),
        **others,
    )


def server_of(args: argparse.Namespace, frontend: FrontendConfig) -> uvicorn.Config:
    """Return the configured HTTP server, with its TLS. Raises: ConfigError"""
    from dovetail.errors import ConfigError
    from dovetail.server.families import build_apis
    from dovetail.server.launch.http_server import uvicorn_config
    from dovetail.server.launch.tls import tls_of
    from dovetail_plugins.gateway.disaggregated import DisaggregatedRouter
    from dovetail_plugins.gateway.prefill_choice import prefill_choice
    from dovetail_plugins.gateway.route_app import build_route
    from dovetail_plugins.gateway.upstream import upstream_of

    if args.block_size < 1:
        raise ConfigError(f"{args.block_size} is not above 0.", where="--block-size")
    prefill = [upstream_of(url, "--prefill") for url in args.prefill]
    router = DisaggregatedRouter(
        prefill,
        [upstream_of(url, "--decode") for url in args.decode],
        prefill_choice(prefill, args.kv_events_config, args.block_size),
    )
    app = build_route(router, frontend, build_apis().values())
    return uvicorn_config(app, frontend, tls_of(frontend))

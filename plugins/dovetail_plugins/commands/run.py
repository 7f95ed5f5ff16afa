"""`dovetail run`: a server and a chat with it in one terminal; leaving the chat ends both. A server
that runs already and offers the model is used instead, and stays."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from typing import TYPE_CHECKING

from dovetail.interfaces.command import Command
from dovetail.interfaces.plugin import Info

if TYPE_CHECKING:
    from dovetail.config.config import Config
    from dovetail_plugins.commands._client import Client
    from dovetail_plugins.commands._server_process import BackgroundServer

PLACES = {"model", "model_dir", "download_dir", "hf_token"}
"""Flags that say which model, and not how it is served."""


class RunCommand(Command):
    """`dovetail run`."""

    info = Info(summary="serve a model and chat with it in this terminal")
    common = frozenset(
        {
            "quick",
            "system_prompt",
            "max_tokens",
            "temperature",
            "port",
            "dtype",
            "quantization",
            "max_model_len",
            "tensor_parallel_size",
            "reasoning_parser",
        }
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the flags of serve and the chat options. -q is the chat's here. Mutates: parser."""
        from dovetail.config.parse.flags import FlagAction
        from dovetail_plugins.commands._serve_flags import add_serve_arguments
        from dovetail_plugins.commands.chat import add_talk_arguments

        add_serve_arguments(parser)
        parser.conflict_handler = "resolve"  # for the chat section; the others are already added
        add_talk_arguments(parser.add_argument_group("Conversation", "The chat"))
        for action in parser._actions:
            if isinstance(action, FlagAction) and action.flag.meta.short == "-q":
                meta = dataclasses.replace(action.flag.meta, short=None)
                action.flag = dataclasses.replace(action.flag, meta=meta)

    def run(self, args: argparse.Namespace) -> int:
        """Serve, chat, end the server; return the exit status. Raises: ConfigError, ServerError."""
        from dovetail.config.parse.parse_config import parse_config
        from dovetail_plugins.commands._server_process import server_of
        from dovetail_plugins.created_models.serving import as_created

        config = parse_config(args)
        running = _running(config)
        if running is not None:
            return _talk(args, *running)
        config = as_created(config)
        with server_of(config) as server:
            status = server.wait_ready(config.model.model or "the demo model")
            return status if status is not None else _talk(args, *_own(args, server, config))


def _running(config: Config) -> tuple[Client, str] | None:
    """Return a client of a running server that offers the model, and the model's name; None if
    there is none, or flags say how the model is to be served."""
    import os

    from dovetail_plugins.commands._client import Client
    from dovetail_plugins.commands._running import running_servers
    from dovetail_plugins.commands._running_models import offering

    name = config.model.model
    if name is None or config.origins.keys() - PLACES:
        return None
    for record in offering(running_servers(), name):
        print(f"{name} is served by process {record.pid} at {record.url}.", file=sys.stderr)
        return Client(record.url, os.environ.get("OPENAI_API_KEY")), name
    return None


def _own(args: argparse.Namespace, server: BackgroundServer, config: Config) -> tuple[Client, str]:
    from dovetail_plugins.commands._client import Client

    keys = config.frontend.api_key
    client = Client(server.url, keys[0] if keys else None)
    if args.quick is None:
        print(f"The server answers at {server.url} too; its log is {server.log}.")
    return client, client.first_model()


def _talk(args: argparse.Namespace, client: Client, name: str) -> int:
    from dovetail_plugins.commands._client import fields_of
    from dovetail_plugins.commands.chat import Chat, talk

    return talk(Chat(client, fields_of(args, name), args.system_prompt), args)

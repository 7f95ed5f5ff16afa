"""`dovetail run`: a server and a chat with it in one terminal; leaving the chat ends both."""

from __future__ import annotations

import argparse
import dataclasses
from typing import TYPE_CHECKING, Any

from dovetail.interfaces.command import Command
from dovetail.interfaces.plugin import Info

if TYPE_CHECKING:
    from dovetail_plugins.commands._server_process import BackgroundServer


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

        config = parse_config(args)
        with server_of(config) as server:
            status = server.wait_ready(config.model.model or "the demo model")
            return status if status is not None else _talk(args, server, config)


def _talk(args: argparse.Namespace, server: BackgroundServer, config: Any) -> int:
    from dovetail_plugins.commands._client import Client, fields_of
    from dovetail_plugins.commands.chat import Chat, talk

    keys = config.frontend.api_key
    client = Client(server.url, keys[0] if keys else None)
    fields = fields_of(args, client.first_model())
    if args.quick is None:
        print(f"The server answers at {server.url} too; its log is {server.log}.")
    return talk(Chat(client, fields, args.system_prompt), args)

"""`dovetail launch`: runs a program, such as a coding agent, with a local server as its model.

The server is one that runs already, or one that starts for the program and ends after it. The
programs are plugins of the kind `client`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from typing import TYPE_CHECKING

from dovetail import registry
from dovetail.errors import ConfigError
from dovetail.interfaces.command import Command
from dovetail.interfaces.plugin import Info

if TYPE_CHECKING:
    from dovetail.config.config import Config
    from dovetail.interfaces.client import ClientProgram, LaunchTarget

KIND = "client"
WHERE = "dovetail launch"
COMMAND_LINE = "command line"
"""The origin of a config's fields that were given as flags."""
LEAST_CONTEXT_TOKENS = 16_384
"""Below this a note is shown: prompts of coding agents have more than 10,000 tokens."""


class LaunchCommand(Command):
    """`dovetail launch`."""

    info = Info(summary="start a coding agent that uses a local server")
    common = frozenset(
        {
            *("client", "arguments", "url", "model_name", "print", "model", "api_key", "port"),
            *("served_model_name", "max_model_len", "tool_call_parser", "reasoning_parser"),
        }
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the program, its arguments, and the flags of serve. Mutates: parser."""
        from dovetail.config.parse.flags import add_flags

        text = f"program to run: {', '.join(registry.names(KIND))}, MODULE:CLASS or FILE:CLASS"
        parser.add_argument("client", metavar="CLIENT", help=text)
        text = "what the program gets; after -- also what begins with a dash"
        parser.add_argument("arguments", nargs="*", metavar="ARGUMENT", help=text)
        text = "address of a running server; default: the server that `dovetail ps` shows"
        parser.add_argument("--url", metavar="URL", help=text)
        text = "name of the model in requests; default the first one served"
        parser.add_argument("--model-name", metavar="NAME", help=text)
        text = "print what would be set, as commands of a shell, and run nothing"
        parser.add_argument("--print", action="store_true", help=text)
        add_flags(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Run the program and return its exit status; 1 if it is not installed.

        Raises: ConfigError, PluginError, ServerError
        """
        from dovetail.config.parse.parse_config import parse_config

        args.model_tag = None
        client: ClientProgram = registry.make(registry.choose(KIND, args.client, where=WHERE))
        config = parse_config(args)
        program = shutil.which(client.program)
        if program is None:
            text = f"{client.program} is not installed. `{client.install}` installs it."
            print(f"dovetail: error: {text}", file=sys.stderr)
        url = _running(args.url, config)
        if args.print or program is None:
            _show(client, args, config, url)
            return int(program is None)
        if url is not None:
            return _run(client, program, args, _target(client, url, _key(config), args.model_name))
        return _serve_and_run(client, program, args, config)


def _running(url: str | None, config: Config) -> str | None:
    """Return the address of the server to use, or None to start one. Raises: ConfigError"""
    given = _server_flags(config)
    if url is not None:
        if given:
            fix = "leave out --url to start a server, or the flags of that server."
            raise ConfigError("--url names a server that runs already.", where=WHERE, fix=fix)
        return url
    if given - {"model"}:
        return None
    return _server_here(config.model.model if given else None)


def _server_flags(config: Config) -> set[str]:
    """Return the flags that ask for a server of its own; a key may be that of a running server."""
    given = {name for name, origin in config.origins.items() if origin == COMMAND_LINE}
    return given - {"api_key"}


def _server_here(model: str | None) -> str | None:
    """Return the address of the one server of this user, or of a model; None if there is none.
    Raises: ConfigError if there are several"""
    from dovetail_plugins.commands._running import running_servers

    found = [one for one in running_servers() if one.url.startswith("http")]
    if model is not None:
        found = [one for one in found if model in (*one.names, one.path)]
    if len(found) > 1:
        shown = "; ".join(f"{one.url} ({', '.join(one.names)})" for one in found)
        fix = f"name one with --url: {shown}."
        raise ConfigError(f"{len(found)} servers could be meant.", where=WHERE, fix=fix)
    return found[0].url if found else None


def _serve_and_run(
    client: ClientProgram, program: str, args: argparse.Namespace, config: Config
) -> int:
    """Start a server, run the program, end the server; return the exit status."""
    from dovetail_plugins.commands._server_process import server_of

    if not config.is_given("model") and not _server_flags(config):
        fix = "name a model with --model, or a server of another machine with --url."
        raise ConfigError("no server runs here.", where=WHERE, fix=fix)
    with server_of(config) as server:
        status = server.wait_ready(config.model.model or "the demo model")
        if status is not None:
            return status
        target = _target(client, server.url, _own_key(config), args.model_name)
        return _run(client, program, args, target)


def _own_key(config: Config) -> str | None:
    return next(iter(config.frontend.api_key), None)


def _key(config: Config) -> str | None:
    """Return the key of a server that runs already."""
    return _own_key(config) or os.environ.get("OPENAI_API_KEY")


def _target(client: ClientProgram, url: str, key: str | None, name: str | None) -> LaunchTarget:
    """Return a server and its model, as the server itself describes it. Raises: ConfigError,
    ServerError"""
    from dovetail.interfaces.client import LaunchTarget
    from dovetail_plugins.commands import _launched
    from dovetail_plugins.commands._client import Client

    url = _launched.base_of(url)
    served = {str(card["id"]): card for card in Client(url, key).models()}
    if name is not None and name not in served:
        fix = f"use one of {', '.join(served)}."
        raise ConfigError(f"{url} serves no {name!r}.", where="--model-name", fix=fix)
    model = name or next(iter(served))
    return LaunchTarget(
        url=url,
        model=model,
        folder=_launched.folder_of(client),
        api_key=key,
        context_tokens=served[model].get("max_model_len"),
    )


def _planned(client: ClientProgram, args: argparse.Namespace, config: Config) -> LaunchTarget:
    """Return the server that `dovetail serve` would start with these flags."""
    from dovetail.config.rules.model.checkpoint import served_names
    from dovetail.interfaces.client import LaunchTarget
    from dovetail_plugins.commands import _launched

    host = config.frontend.host or "127.0.0.1"
    shown = f"[{host}]" if ":" in host else host
    return LaunchTarget(
        url=_launched.base_of(f"http://{shown}:{config.frontend.port}"),
        model=args.model_name or served_names(config.model)[0],
        folder=_launched.folder_of(client),
        api_key=_own_key(config),
    )


def _show(client: ClientProgram, args: argparse.Namespace, config: Config, url: str | None) -> None:
    from dovetail_plugins.commands._launched import script

    if url is None:
        target = _planned(client, args, config)
        print("# No such server runs here; `dovetail serve` with these flags starts it.")
    else:
        target = _target(client, url, _key(config), args.model_name)
    print(script(client, target, args.arguments), end="")


def _run(
    client: ClientProgram, program: str, args: argparse.Namespace, target: LaunchTarget
) -> int:
    from dovetail_plugins.commands._launched import run_program

    context = target.context_tokens
    if context is not None and context < LEAST_CONTEXT_TOKENS:
        text = f"{target.model} has a context of {context:,} tokens, too few for a coding agent."
        print(f"dovetail: warning: {text}", file=sys.stderr)
    return run_program(client, program, target, args.arguments)

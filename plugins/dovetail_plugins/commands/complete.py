"""`dovetail complete`: text completion with a running server, in the terminal."""

from __future__ import annotations

import argparse
import contextlib
import sys
from typing import Any

from dovetail.errors import DovetailError
from dovetail.interfaces.command import Command
from dovetail.interfaces.plugin import Info


class CompleteCommand(Command):
    """`dovetail complete`."""

    info = Info(summary="complete text with a running server")

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the options of complete. Mutates: parser."""
        from dovetail_plugins.commands._client import add_answer_arguments, add_server_arguments

        add_server_arguments(parser)
        add_answer_arguments(parser, quick="PROMPT", text="complete once, print, leave")

    def run(self, args: argparse.Namespace) -> int:
        """Complete until the end of input; return the exit status. Raises: ServerError."""
        from dovetail_plugins.commands._client import client_of
        from dovetail_plugins.commands._line_history import line_editing
        from dovetail_plugins.commands.chat import read_message

        client, fields = client_of(args)
        if args.quick is not None:
            complete(client, fields, args.quick)
            return 0
        print(f"Completing with {fields['model']}. Ctrl-C stops a completion, Ctrl-D leaves.")
        with line_editing(None):
            while (prompt := read_message()) is not None:
                try:
                    complete(client, fields, prompt)
                except DovetailError as error:
                    sys.stdout.flush()
                    print(f"error: {error}", file=sys.stderr)
        return 0


def complete(client: Any, fields: dict[str, Any], prompt: str) -> str:
    """Print the streamed completion and return it."""
    from dovetail_plugins.commands.chat import write

    parts: list[str] = []
    with contextlib.closing(client.stream("/completions", {**fields, "prompt": prompt})) as chunks:
        try:
            for chunk in chunks:
                choices = chunk.get("choices") or [{}]
                parts.append(str(choices[0].get("text") or ""))
                write(parts[-1])
        except KeyboardInterrupt:
            write(" [stopped]")
    write("\n")
    return "".join(parts)

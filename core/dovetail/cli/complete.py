"""`dovetail complete`: raw text completion by a running server in the terminal."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from dovetail.errors import DovetailError

HELP = "complete text with a running server"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of complete. Mutates: parser."""
    from dovetail.cli.client import add_client_arguments

    add_client_arguments(parser, quick="PROMPT", quick_help="complete once, print, leave")


def run(args: argparse.Namespace) -> int:
    """Complete until the end of input; return the exit status. Raises: ServerError."""
    from dovetail.cli.client import client_of

    client, fields = client_of(args)
    if args.quick is not None:
        complete(client, fields, args.quick)
        return 0
    print(f"Completing with {fields['model']}. Ctrl-D leaves.")
    while True:
        try:
            prompt = input("> ")
        except (EOFError, KeyboardInterrupt):
            print()
            return 0
        try:
            complete(client, fields, prompt)
        except DovetailError as error:
            print(f"error: {error}", file=sys.stderr)


def complete(client: Any, fields: dict[str, Any], prompt: str) -> str:
    """Print the streamed completion and return it."""
    parts: list[str] = []
    try:
        for chunk in client.stream("/completions", {**fields, "prompt": prompt}):
            choices = chunk.get("choices") or [{}]
            parts.append(str(choices[0].get("text") or ""))
            sys.stdout.write(parts[-1])
            sys.stdout.flush()
    except KeyboardInterrupt:
        print(" [stopped]", end="")
    print()
    return "".join(parts)

"""`dovetail chat`: a conversation with a running server in the terminal."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from dovetail.errors import DovetailError

HELP = "chat with a running server"
_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of chat. Mutates: parser."""
    from dovetail.cli.client import add_client_arguments

    add_client_arguments(parser, quick="MESSAGE", quick_help="ask once, print the answer, leave")
    parser.add_argument("--system-prompt", metavar="TEXT", help="system message to begin with")


def run(args: argparse.Namespace) -> int:
    """Chat until the end of input; return the exit status. Raises: ServerError."""
    from dovetail.cli.client import client_of

    client, fields = client_of(args)
    history: list[dict[str, str]] = []
    if args.system_prompt:
        history.append({"role": "system", "content": args.system_prompt})
    if args.quick is not None:
        answer(client, fields, history, args.quick)
        return 0
    print(f"Chatting with {fields['model']}. Ctrl-C stops an answer, Ctrl-D leaves.")
    converse(client, fields, history)
    return 0


def converse(client: Any, fields: dict[str, Any], history: list[dict[str, str]]) -> None:
    """Ask, answer, repeat; an error ends one answer only. Mutates: history."""
    _use_line_editing()
    while True:
        try:
            message = input("> ")
        except (EOFError, KeyboardInterrupt):
            print()
            return
        if not message.strip():
            continue
        try:
            answer(client, fields, history, message)
        except DovetailError as error:
            print(f"error: {error}", file=sys.stderr)


def answer(client: Any, fields: dict[str, Any], history: list[dict[str, str]], message: str) -> str:
    """Print the streamed answer and return it. Mutates: history (only when one came)."""
    messages = [*history, {"role": "user", "content": message}]
    parts: list[str] = []
    try:
        for chunk in client.stream("/chat/completions", {**fields, "messages": messages}):
            parts.append(_show(chunk))
    except KeyboardInterrupt:
        print(" [stopped]", end="")
    print()
    text = "".join(parts)
    history[:] = [*messages, {"role": "assistant", "content": text}]
    return text


def _show(chunk: dict[str, Any]) -> str:
    """Print what a chunk brings and return its content."""
    choices = chunk.get("choices") or [{}]
    delta = choices[0].get("delta") or {}
    reasoning = delta.get("reasoning_content") or delta.get("reasoning") or ""
    if reasoning:
        _write(f"{_DIM}{reasoning}{_PLAIN}" if sys.stdout.isatty() else reasoning)
    for call in delta.get("tool_calls") or []:
        function = call.get("function") or {}
        _write((function.get("name") or "") + (function.get("arguments") or ""))
    content = delta.get("content") or ""
    _write(content)
    return str(content)


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _use_line_editing() -> None:
    """Give input() a history and cursor keys where the platform has them."""
    if sys.stdin.isatty():
        from contextlib import suppress

        with suppress(ImportError):
            import readline  # noqa: F401  (importing it is what switches it on)

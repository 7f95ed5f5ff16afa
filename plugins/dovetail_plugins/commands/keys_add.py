"""`dovetail keys add`: makes a key, prints it once, and stores its hash."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from dovetail.errors import ConfigError
from dovetail.interfaces.command import Command
from dovetail.interfaces.plugin import Info

WHERE = "dovetail keys add"
DEFAULT_FILE = Path("keys.yaml")
LIMITS = {
    "requests": "requests that are answered at the same time",
    "queued": "prompts that wait for their first token",
    "tokens_per_minute": "tokens of prompts and answers in a minute",
    "tokens_per_day": "tokens of prompts and answers in a day",
    "prompt_tokens": "tokens of a prompt",
    "answer_tokens": "tokens of an answer, which ends there",
}


class KeysAddCommand(Command):
    """`dovetail keys add`."""

    info = Info(summary="make an API key, print it once, and store its hash under a name")

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the name, the file, scopes and limits. Mutates: parser."""
        parser.add_argument("name", metavar="NAME", help="whose key it is, as accounts show it")
        add_file(parser)
        parser.add_argument("--weight", type=float, help="share under --scheduling-policy fair")
        parser.add_argument("--admin", action="store_true", help="may change the server")
        for what in ("models", "families"):
            parser.add_argument(
                f"--{what}", nargs="+", metavar="PATTERN", help=f"only these {what}"
            )
        for name, text in LIMITS.items():
            flag = f"--{name.replace('_', '-')}"
            parser.add_argument(flag, type=int, metavar="N", help=f"maximum number of {text}")

    def run(self, args: argparse.Namespace) -> int:
        """Add the key and print it; return the exit status. Raises: ConfigError"""
        from dovetail_plugins.gates._keys_file import add_key, hash_of, new_key

        key = new_key()
        try:
            add_key(args.file, _fields_of(args, hash_of(key)))
        except OSError as error:
            raise ConfigError(f"{args.file} cannot be written: {error}.", where=WHERE) from error
        print(key)
        return 0


def _fields_of(args: argparse.Namespace, digest: str) -> dict[str, Any]:
    """Return the fields of the new key, without those that keep their defaults."""
    limits = {name: value for name in LIMITS if (value := getattr(args, name)) is not None}
    fields = {
        "name": args.name,
        "hash": digest,
        "weight": args.weight,
        "admin": args.admin or None,
        "models": args.models,
        "families": args.families,
        "limits": limits or None,
    }
    return {name: value for name, value in fields.items() if value is not None}


def add_file(parser: argparse.ArgumentParser) -> None:
    """Add the keys file. Mutates: parser."""
    text = f"the file of --api-keys-file (default {DEFAULT_FILE}); YAML if it is new"
    parser.add_argument("--file", type=Path, default=DEFAULT_FILE, metavar="FILE", help=text)

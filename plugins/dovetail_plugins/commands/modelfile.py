"""`dovetail modelfile`: an Ollama Modelfile as a settings file for `dovetail serve --config`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from dovetail.interfaces.command import Command
from dovetail.interfaces.plugin import Info


class ModelfileCommand(Command):
    """`dovetail modelfile`."""

    info = Info(
        summary="print the settings that serve a model as an Ollama Modelfile says",
        source="https://github.com/ollama/ollama/blob/main/docs/modelfile.mdx",
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the file and the name. Mutates: parser."""
        parser.add_argument("file", metavar="FILE", type=Path, help="the Modelfile")
        parser.add_argument(
            "--name", default="", help="name of the model for clients; default: the model's own"
        )

    def run(self, args: argparse.Namespace) -> int:
        """Print the settings as YAML, and warn of what has no equal; return the exit status.

        Raises: ConfigError
        """
        import yaml

        from dovetail_plugins.modelfile.fields import fields_of
        from dovetail_plugins.modelfile.reading import read_file

        file = args.file / "Modelfile" if args.file.is_dir() else args.file
        found = fields_of(read_file(file), name=args.name, folder=file.parent)
        print(yaml.safe_dump(dict(found.fields), sort_keys=False, allow_unicode=True), end="")
        if found.left_out:
            print(f"left out, as it has no equal: {', '.join(found.left_out)}", file=sys.stderr)
        return 0

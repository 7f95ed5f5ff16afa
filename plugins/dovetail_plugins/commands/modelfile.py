"""`dovetail modelfile`: an Ollama Modelfile as a settings file for `dovetail serve --config`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from dovetail.errors import ConfigError
from dovetail.interfaces.command import Command
from dovetail.interfaces.plugin import Info

if TYPE_CHECKING:
    from dovetail_plugins.modelfile.model import Modelfile


class ModelfileCommand(Command):
    """`dovetail modelfile`."""

    info = Info(
        summary="print the settings that serve a model as an Ollama Modelfile says",
        source="https://github.com/ollama/ollama/blob/main/docs/modelfile.mdx",
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the file and the name. Mutates: parser."""
        parser.add_argument(
            "file", metavar="FILE", help="the Modelfile, or the name of a model in Ollama's store"
        )
        parser.add_argument(
            "--name", default="", help="name of the model for clients; default: the model's own"
        )

    def run(self, args: argparse.Namespace) -> int:
        """Print the settings as YAML, and warn of what has no equal; return the exit status.

        Raises: ConfigError
        """
        import yaml

        from dovetail_plugins.modelfile.fields import fields_of

        modelfile, folder, name = _found(args.file)
        found = fields_of(modelfile, name=args.name or name, folder=folder)
        print(yaml.safe_dump(dict(found.fields), sort_keys=False, allow_unicode=True), end="")
        if found.left_out:
            print(f"left out, as it has no equal: {', '.join(found.left_out)}", file=sys.stderr)
        return 0


def _found(word: str) -> tuple[Modelfile, Path | None, str]:
    """Return a Modelfile, the folder of its paths, and its name in Ollama ("": none). Raises:
    ConfigError"""
    from dovetail_plugins.modelfile.reading import read_file
    from dovetail_plugins.modelfile.stored import find_manifest, of_manifest, store_folder

    file, store = Path(word), store_folder()
    if file.exists():
        file = file / "Modelfile" if file.is_dir() else file
        return read_file(file), file.parent, ""
    manifest = find_manifest(word)
    if manifest is None or store is None:
        raise ConfigError(
            f"{word} is neither a file nor a model in Ollama's store.",
            where="FILE",
            fix="`dovetail list` shows the models on this machine.",
        )
    return of_manifest(manifest, store), None, word

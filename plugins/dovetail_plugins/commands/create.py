"""`dovetail create`: makes a model of a Modelfile, for servers that load models by name."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from dovetail.errors import ConfigError, RequestError
from dovetail.interfaces.command import Command
from dovetail.interfaces.plugin import Info

if TYPE_CHECKING:
    from dovetail_plugins.created_models.blobs import Blobs
    from dovetail_plugins.created_models.store import Record
    from dovetail_plugins.gateway.catalogue import Catalogue

WHERE = "dovetail create"


class CreateCommand(Command):
    """`dovetail create`."""

    info = Info(
        summary="make a model of a Modelfile",
        source="https://github.com/ollama/ollama/blob/main/docs/modelfile.mdx",
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the name, the file and the store arguments. Mutates: parser."""
        from dovetail_plugins.commands._model_stores import add_store_arguments

        parser.add_argument("name", metavar="NAME", help="the model's name: NAME or NAME:TAG")
        parser.add_argument(
            *("-f", "--file"),
            type=Path,
            default=Path("Modelfile"),
            metavar="FILE",
            help="the Modelfile; default Modelfile",
        )
        parser.add_argument(
            *("-q", "--quantize"),
            default="",
            metavar="TYPE",
            help="quantize the base first, to a type of GGUF: q4_K_M, q8_0, ...",
        )
        add_store_arguments(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Create; return the exit status. Raises: ConfigError"""
        from dovetail_plugins.commands._created import catalogue_of, store
        from dovetail_plugins.created_models.names import full_name

        catalogue = catalogue_of(args)
        try:
            name = full_name(args.name, WHERE)  # before anything is copied
            record = _record(catalogue, args.file)
            if args.quantize:
                record = _quantized(catalogue, record, args.quantize)
            store(catalogue, name, record, WHERE)
        except RequestError as error:
            raise ConfigError(error.what, where=error.where, fix=error.fix) from error
        print(f"{name} is made: `dovetail serve --models any` offers it.")
        return 0


def _record(catalogue: Catalogue, file: Path) -> Record:
    """Return the model of a Modelfile; the files that it names are copied in. Raises: ConfigError,
    RequestError, OSError"""
    from dovetail_plugins.gateway.manage.making import record_from
    from dovetail_plugins.modelfile.reading import read_file

    described, folder, blobs = read_file(file), file.parent, catalogue.created.blobs
    base = folder / Path(described.base).expanduser()
    files = _copied(blobs, base, "model.gguf") if catalogue.find(described.base) is None else {}
    adapters: dict[str, str] = {}
    for place in described.adapters:
        path = folder / Path(place).expanduser()
        if not path.exists():
            raise ConfigError(
                f"{path} does not exist.", where=f"{file}, ADAPTER", fix="check the path."
            )
        adapters |= _copied(blobs, path, f"adapter{len(adapters)}.gguf")
    return record_from(catalogue, replace(described, adapters=()), files, adapters)


def _quantized(catalogue: Catalogue, record: Record, kind: str) -> Record:
    """Return the model with its base quantized, and print how far that is. Raises: ConfigError,
    RequestError"""
    import asyncio

    from dovetail_plugins.gateway.manage.quantizing import method_of, quantized

    method_of(kind)
    found: list[Record] = []

    async def run() -> None:
        async for line in quantized(catalogue, record, kind, found):
            if "error" in line:
                raise ConfigError(line["error"], where=WHERE)
            if line.get("completed") in (None, line.get("total")):
                print(line["status"])

    asyncio.run(run())
    return found[0]


def _copied(blobs: Blobs, path: Path, name: str) -> dict[str, str]:
    """Return a file under this name, or those of a folder, as name -> digits; empty if there is
    none. Raises: RequestError"""
    from dovetail_plugins.created_models.names import file_name

    if not path.is_dir():
        return {name: blobs.add(path)} if path.is_file() else {}
    files = (one for one in sorted(path.iterdir()) if one.is_file() and one.name[0] != ".")
    return {file_name(one.name, str(path)): blobs.add(one) for one in files}

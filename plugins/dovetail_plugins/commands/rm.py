"""`dovetail rm`: deletes a model, only from the hub's cache."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from dovetail.errors import ConfigError
from dovetail.interfaces.command import Command
from dovetail.interfaces.plugin import Info

if TYPE_CHECKING:
    from dovetail.config.checkpoint.stores.stored import StoredModel

WHERE = "dovetail rm"


class RmCommand(Command):
    """`dovetail rm`."""

    info = Info(summary="delete a model from the Hugging Face cache")

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the model, the confirmation and the store arguments. Mutates: parser."""
        from dovetail_plugins.commands._model_stores import add_store_arguments

        parser.add_argument("model", metavar="MODEL", help="a name that `dovetail list` shows")
        parser.add_argument("-y", "--yes", action="store_true", help="do not ask")
        add_store_arguments(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Ask, delete, and print how much was freed; return the exit status. Raises:
        ConfigError."""
        from dovetail.config.checkpoint.stores.hub_cache import repo_folder
        from dovetail.config.checkpoint.stores.stored import HUB
        from dovetail_plugins.commands._model_stores import stores_of
        from dovetail_plugins.inspect.render import size

        stores = stores_of(args)
        repo, _, quant = args.model.partition(":")
        folder = repo_folder(stores.cache, repo)
        found = [model for model in stores.all_models() if model.name == args.model]
        if found and found[0].store != HUB:
            raise _not_ours(found[0])
        files = _files(folder, args.model, quant)
        if not files:
            fix = "`dovetail list` shows what is there."
            raise ConfigError(f"there is no model {args.model} here.", where=WHERE, fix=fix)
        num_bytes = sum(file.stat().st_size for file in {file.resolve() for file in files})
        if not args.yes and not _is_wanted(f"Delete {args.model} ({size(num_bytes)}, {folder})?"):
            print("Nothing was deleted.")
            return 1
        _delete(folder, files, is_whole=not quant)
        print(f"{args.model} is deleted: {size(num_bytes)} are free again.")
        return 0


def _not_ours(model: StoredModel) -> ConfigError:
    from dovetail.config.checkpoint.stores.stored import FOLDER, LM_STUDIO, MODELSCOPE

    fix = {
        FOLDER: f"delete it yourself: {model.path}",
        MODELSCOPE: f"delete it yourself, or with ModelScope's tools: {model.path}",
        LM_STUDIO: "delete it in LM Studio, or with its `lms` command.",
    }.get(model.store, f"`ollama rm {model.name}` does.")
    whose = "a folder of your own" if model.store == FOLDER else f"{model.store}'s store"
    return ConfigError(
        f"{model.name} is in {whose}; dovetail deletes only from the Hugging Face cache.",
        where=WHERE,
        fix=fix,
    )


def _files(folder: Path, name: str, quant: str) -> list[Path]:
    """Return the links of a model in all its snapshots, or only a quantization's links. Raises:
    ConfigError if the name is ambiguous"""
    from dovetail.config.checkpoint.stores.gguf_names import models_below, named

    snapshots = [one for one in (folder / "snapshots").glob("*") if one.is_dir()]
    if not quant:
        return [file for one in snapshots for file in one.rglob("*") if file.is_file()]
    files = []
    for snapshot in snapshots:
        matches = named(models_below(snapshot), quant)
        if len(matches) > 1:
            fix = "give a file's name after the colon."
            raise ConfigError(f"{name} may be several files.", where=WHERE, fix=fix)
        files += [snapshot / file for model in matches for file in model.files]
    return files


def _is_wanted(question: str) -> bool:
    """Return the user's answer. Raises: ConfigError if there is no terminal to ask on"""
    if not sys.stdin.isatty():
        raise ConfigError("nobody can be asked here.", where=WHERE, fix="add --yes.")
    return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")


def _delete(folder: Path, files: list[Path], *, is_whole: bool) -> None:
    """Delete a whole repository, or some links and the blobs that no other link uses."""
    import shutil

    if is_whole:
        shutil.rmtree(folder)
        return
    blobs = {file.resolve() for file in files if file.is_symlink()}
    for file in files:
        file.unlink()
    left = {one.resolve() for one in (folder / "snapshots").rglob("*") if one.is_symlink()}
    for blob in blobs - left:
        blob.unlink()

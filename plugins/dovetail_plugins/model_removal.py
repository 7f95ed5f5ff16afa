"""Deleting a model from the Hugging Face cache or Ollama's store, into which dovetail pulls. Models
elsewhere belong to somebody else."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from dovetail.config.checkpoint.stores.find import Stores
from dovetail.config.checkpoint.stores.gguf_names import models_below, named
from dovetail.config.checkpoint.stores.hub_cache import repo_folder
from dovetail.config.checkpoint.stores.stored import (
    FOLDER,
    HUB,
    LM_STUDIO,
    MODELSCOPE,
    OLLAMA,
    StoredModel,
)
from dovetail.errors import ConfigError
from dovetail_plugins.ollama_registry.removal import RegistryRemoval, registry_removal


@dataclass(frozen=True, slots=True)
class Removal:
    """What is deleted with a model: a whole repository, or some of its links and their blobs."""

    folder: Path
    files: tuple[Path, ...]
    is_whole: bool

    @property
    def num_bytes(self) -> int:
        """Return how much becomes free; less if other links use the same blobs."""
        return sum(file.stat().st_size for file in {file.resolve() for file in self.files})

    def run(self) -> None:
        """Delete. Raises: OSError"""
        if self.is_whole:
            shutil.rmtree(self.folder)
            return
        blobs = {file.resolve() for file in self.files if file.is_symlink()}
        for file in self.files:
            file.unlink()
        links = (one for one in (self.folder / "snapshots").rglob("*") if one.is_symlink())
        for blob in blobs - {one.resolve() for one in links}:
            blob.unlink()


def removal_of(stores: Stores, name: str, where: str) -> Removal | RegistryRemoval:
    """Return what to delete with a model. `where` names the command. Raises: ConfigError for a
    model that is not here, or in another store"""
    repo, _, quant = name.partition(":")
    found = [model for model in stores.all_models() if model.name == name]
    if found and found[0].store == OLLAMA:
        return registry_removal(name, where)
    if found and found[0].store != HUB:
        raise not_ours(found[0], where)
    folder = repo_folder(stores.cache, repo)
    files = () if ".." in folder.parts or "\0" in name else _files(folder, name, quant, where)
    if not files:
        fix = "`dovetail list` shows what is there."
        raise ConfigError(f"there is no model {name} here.", where=where, fix=fix)
    return Removal(folder, files, is_whole=not quant)


def not_ours(model: StoredModel, where: str) -> ConfigError:
    """Return the error for a model of another store, with what deletes it there."""
    fix = {
        FOLDER: f"delete it yourself: {model.path}",
        MODELSCOPE: f"delete it yourself, or with ModelScope's tools: {model.path}",
        LM_STUDIO: "delete it in LM Studio, or with its `lms` command.",
    }[model.store]
    whose = "a folder of your own" if model.store == FOLDER else f"{model.store}'s store"
    return ConfigError(
        f"{model.name} is in {whose}; dovetail deletes only from the Hugging Face cache and "
        "Ollama's store.",
        where=where,
        fix=fix,
    )


def _files(folder: Path, name: str, quant: str, where: str) -> tuple[Path, ...]:
    """Return the links of a model in all its snapshots, or only a quantization's links. Raises:
    ConfigError if the name is ambiguous"""
    snapshots = [one for one in (folder / "snapshots").glob("*") if one.is_dir()]
    if not quant:
        return tuple(file for one in snapshots for file in one.rglob("*") if file.is_file())
    files: list[Path] = []
    for snapshot in snapshots:
        matches = named(models_below(snapshot), quant)
        if len(matches) > 1:
            fix = "give a file's name after the colon."
            raise ConfigError(f"{name} may be several files.", where=where, fix=fix)
        files += [snapshot / file for model in matches for file in model.files]
    return tuple(files)

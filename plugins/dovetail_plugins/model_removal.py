"""Deleting a model from the Hugging Face cache or Ollama's store, into which dovetail pulls. Models
elsewhere belong to somebody else."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from dovetail.config.checkpoint.sources.gguf_names import models_below, named
from dovetail.config.checkpoint.sources.hub_cache import cache_folder, repo_folder
from dovetail.config.checkpoint.sources.stores import Stores
from dovetail.errors import ConfigError
from dovetail.interfaces.model_store import StoredModel
from dovetail_plugins.model_stores.hub_cache import HubCache
from dovetail_plugins.model_stores.ollama import Ollama
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
    if found and found[0].store == Ollama.title:
        return registry_removal(name, where)
    if found and found[0].store != HubCache.title:
        raise not_ours(stores, found[0], where)
    folder = repo_folder(cache_folder(stores.places.download_dir), repo)
    files = () if ".." in folder.parts or "\0" in name else _files(folder, name, quant, where)
    if not files:
        fix = "`dovetail list` shows what is there."
        raise ConfigError(f"there is no model {name} here.", where=where, fix=fix)
    return Removal(folder, files, is_whole=not quant)


def not_ours(stores: Stores, model: StoredModel, where: str) -> ConfigError:
    """Return the error for a model of another store, with what deletes it there."""
    store = stores.titled(model.store)
    fix = store.removal if store is not None else "delete it yourself: {path}"
    return ConfigError(
        f"{model.name} is in {model.store}; dovetail deletes only from the Hugging Face cache and "
        "Ollama's store.",
        where=where,
        fix=fix.format(name=model.name, path=model.path),
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

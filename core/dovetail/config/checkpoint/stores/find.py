"""Find all models on this machine, or one by name.

If two stores have a name, the first one wins: the folders of --model-dir, the hub's cache,
ModelScope's, LM Studio, Ollama.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from dovetail.config.checkpoint.sources.weights_check import missing_files, weights_bytes
from dovetail.config.checkpoint.stores import folders, hub_cache, ollama
from dovetail.config.checkpoint.stores.stored import FOLDER, HUB, LM_STUDIO, MODELSCOPE, StoredModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Stores:
    """The places to search for models."""

    folders: tuple[Path, ...] = ()
    cache: Path = field(default_factory=hub_cache.cache_folder)
    modelscope: Path = field(default_factory=lambda: folders.modelscope_cache())
    lm_studio: tuple[Path, ...] = field(default_factory=lambda: tuple(folders.lm_studio_folders()))
    ollama: Path | None = field(default_factory=ollama.store_folder)

    @classmethod
    def of(cls, model_dirs: Sequence[str] = (), cache: str | None = None) -> Stores:
        """Return the stores of --model-dir and --download-dir, and the usual stores."""
        return cls(
            folders=tuple(Path(folder).expanduser().absolute() for folder in model_dirs),
            cache=hub_cache.cache_folder(cache),
        )

    def all_models(self) -> Iterator[StoredModel]:
        """Yield every model; names that an earlier store has are skipped."""
        names: set[str] = set()
        for model in self._all():
            if model.name not in names:
                names.add(model.name)
                yield model

    def _all(self) -> Iterator[StoredModel]:
        for folder in self.folders:
            yield from folders.models(folder)
        yield from hub_cache.models(self.cache)
        if self.modelscope.is_dir():
            yield from folders.modelscope_models(self.modelscope)
        for folder in self.lm_studio:
            if folder.is_dir():
                yield from folders.models(folder, LM_STUDIO)
        if self.ollama is not None:
            yield from ollama.models(self.ollama)

    def in_folders(self, name: str) -> StoredModel | None:
        """Return the model of this name in a folder of --model-dir. Raises: ConfigError"""
        return _first_in(self.folders, name, FOLDER)

    def in_cache(self, name: str, revision: str | None = None) -> StoredModel | None:
        """Return the cached GGUF model for NAME:QUANT. Raises: ConfigError"""
        repo, _, quant = name.partition(":")
        folder = hub_cache.snapshot(self.cache, repo, revision) if quant else None
        path = hub_cache.find_quant(folder, name, quant) if folder is not None else None
        return None if path is None else _entry(name, path, HUB)

    def of_others(self, name: str) -> StoredModel | None:
        """Return the model of this name in another program's store. Raises: ConfigError"""
        repo, colon, quant = name.partition(":")
        folder_name = folders.modelscope_name(repo) + colon + quant
        found = _first_in([self.modelscope / "models"], folder_name, MODELSCOPE)
        if found is not None and (found.path.is_file() or not missing_files(found.path)):
            return replace(found, name=name)
        found = _first_in(self.lm_studio, name, LM_STUDIO)
        if found is None and self.ollama is not None:
            found = ollama.find(self.ollama, name)
        return found


def _first_in(roots: Sequence[Path], name: str, store: str) -> StoredModel | None:
    for root in roots:
        path = folders.find(root, name)
        if path is not None:
            return _entry(name, path, store)
    return None


def _entry(name: str, path: Path, store: str) -> StoredModel:
    return StoredModel(name=name, store=store, path=path, num_bytes=weights_bytes(path))

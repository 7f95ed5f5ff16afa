"""ModelStore: models on this machine by name: a cache, folders, another program's files.

A listing opens no connection, so that it is as fast as the file system.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from dovetail.interfaces.plugin import Plugin


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredModel:
    """`path` is what is served: a folder, or the (first) file that is a model; `store` is the
    title of its store.

    `label` is the quantization in a GGUF file's name. Another program's store states its models'
    `family` and `label`. `fault` is the reason why the model cannot be served, if any.
    """

    name: str
    store: str
    path: Path
    num_bytes: int
    label: str = ""
    family: str = ""
    fault: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StorePlaces:
    """Places that flags name: --model-dir and --download-dir (None: the usual folders), which with
    --use-modelscope is ModelScope's."""

    model_dirs: tuple[str, ...] = ()
    download_dir: str | None = None
    use_modelscope: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedModel:
    """A model to find; with a `revision` (a commit or a branch of a hub) only that one will do.
    Unless it `needs_weights`, its settings suffice."""

    name: str
    revision: str | None = None
    needs_weights: bool = True


class ModelStore(Plugin):
    """One store. If two have a name, the store with the higher `auto_rank` wins.

    `title` names the store in lists and errors; `removal` says how a user deletes one of its
    models, in words with {name} and {path}.
    """

    title: ClassVar[str]
    removal: ClassVar[str]
    known_capabilities: ClassVar[Mapping[str, str]] = {
        "fetches": "is the cache of a hub, and fetches models from it",
    }

    @abstractmethod
    def __init__(self, options: Any, places: StorePlaces) -> None:
        """Prepare to read; the store need not exist on this machine."""

    @abstractmethod
    def models(self) -> Iterator[StoredModel]:
        """Yield every model, those that cannot be served too, with their `fault`."""

    @abstractmethod
    def find(self, wanted: WantedModel) -> StoredModel | None:
        """Return a model by name, or None. A store may accept other spellings than `models` has.

        Raises: ConfigError if several models match
        """

    def folder(self, wanted: WantedModel) -> Path:
        """Return the folder of a fetched model, which need not exist. This and the next two are
        called only on stores that claim "fetches"."""
        raise NotImplementedError(f"{type(self).__name__} fetches nothing")

    def listed(self, wanted: WantedModel) -> list[str]:
        """Return the names of all files that the hub has of a model. Raises: OSError, ValueError"""
        raise NotImplementedError(f"{type(self).__name__} fetches nothing")

    def download(self, wanted: WantedModel, names: Sequence[str]) -> Path:
        """Return the model's folder with these files, fetching the missing ones. Raises: OSError,
        ValueError"""
        raise NotImplementedError(f"{type(self).__name__} fetches nothing")

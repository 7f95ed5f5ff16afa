"""ModelStore: models on this machine by name: a cache, folders, another program's files.

A store is only read, and opens no connection, so that a listing is as fast as the file system.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
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

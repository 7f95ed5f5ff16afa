"""CreatedStore: the models that users make, each a Modelfile in its own file.

A model's base is the name of another model, or its own uploaded files: links to blobs in a folder.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote, unquote

import msgspec

from dovetail.config.checkpoint.sources.gguf_names import ENDING, models_below
from dovetail.config.checkpoint.sources.weights_check import weights_bytes
from dovetail.interfaces.model_store import StoredModel
from dovetail.json_values import InvalidJson, json_struct
from dovetail_plugins.created_models.blobs import Blobs
from dovetail_plugins.modelfile.model import Modelfile
from dovetail_plugins.state_folder import user_folder

CREATED = "created"
"""The store's name in lists."""
ADAPTER_CONFIG = "adapter_config.json"
_END = ".json"
_NEW = ".new-"


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One model. `files` and `adapters` are uploaded ones: file name -> digits of the digest. With
    `files` the Modelfile's base is empty."""

    modelfile: Modelfile
    files: dict[str, str] = {}
    adapters: dict[str, str] = {}

    @property
    def digests(self) -> set[str]:
        """Return the digits of all blobs that the model uses."""
        return {*self.files.values(), *self.adapters.values()}


def data_folder() -> Path:
    """Return the folder of created models, which need not exist."""
    return user_folder("XDG_DATA_HOME", ".local/share") / "models"


class CreatedStore:
    """The models in a folder. Changes are atomic, also for other processes that read."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = data_folder() if folder is None else folder
        self.blobs = Blobs(self.folder / "blobs")

    def names(self) -> Iterator[str]:
        """Yield the names, in order."""
        for file in sorted((self.folder / "names").glob(f"*{_END}")):
            yield unquote(file.name.removesuffix(_END))

    def get(self, name: str) -> Record | None:
        """Return a model; None if there is none, or its file cannot be read."""
        try:
            record: Record = json_struct(self._file(name).read_bytes(), Record)
        except (OSError, InvalidJson):
            return None
        return record

    def put(self, name: str, record: Record) -> None:
        """Write a model, in place of an older one of this name, whose blobs stay. Raises:
        OSError"""
        self._link(self._files_folder(name), record.files)
        self._link(self._files_folder(name, "adapters"), record.adapters)
        file = self._file(name)
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=file.parent, prefix=_NEW, delete=False) as new:
            new.write(msgspec.json.encode(record))
        Path(new.name).replace(file)

    def remove(self, name: str) -> None:
        """Delete a model, and its files that no other model uses. Raises: OSError"""
        old = self.get(name)
        self._file(name).unlink(missing_ok=True)
        for kind in ("files", "adapters"):
            shutil.rmtree(self._files_folder(name, kind), ignore_errors=True)
        self.drop_blobs(old)

    def models(self, others: Mapping[str, StoredModel]) -> Iterator[StoredModel]:
        """Yield all models; `others` are those of the other stores, which may be their bases."""
        for name in self.names():
            record = self.get(name)
            if record is not None:
                yield self.stored(name, record, others)

    def stored(self, name: str, record: Record, others: Mapping[str, StoredModel]) -> StoredModel:
        """Return what is served under a name."""
        if record.files:
            path = served(self._files_folder(name))
            fault = "" if path.exists() else "its files are missing"
            size = 0 if fault else weights_bytes(path)
            return StoredModel(name=name, store=CREATED, path=path, num_bytes=size, fault=fault)
        base = others.get(record.modelfile.base)
        if base is None:
            fault = f"its base {record.modelfile.base} is gone"
            return StoredModel(name=name, store=CREATED, path=Path(), num_bytes=0, fault=fault)
        return replace(base, name=name, store=CREATED)

    def modelfile(self, name: str, model: StoredModel) -> Modelfile | None:
        """Return a model's Modelfile, with paths for its base and adapters; None if it was not
        created."""
        record = self.get(name) if model.store == CREATED else None
        if record is None:
            return None
        folder = self._files_folder(name, "adapters")
        is_folder = ADAPTER_CONFIG in record.adapters
        paths = [folder] if is_folder else [folder / file for file in record.adapters]
        adapters = tuple(map(str, paths))
        return replace(record.modelfile, base=str(model.path), adapters=adapters)

    def used(self) -> set[str]:
        """Return the digits of all blobs that models use."""
        records = filter(None, map(self.get, self.names()))
        return {digits for record in records for digits in record.digests}

    def drop_blobs(self, old: Record | None) -> None:
        """Delete the blobs of a former model that no other uses. Raises: OSError"""
        if old is not None and old.digests:
            for digits in old.digests - self.used():
                self.blobs.path(digits).unlink(missing_ok=True)

    def _file(self, name: str) -> Path:
        return self.folder / "names" / f"{quote(name, safe='')}{_END}"

    def _files_folder(self, name: str, kind: str = "files") -> Path:
        return self.folder / kind / quote(name, safe="")

    def _link(self, folder: Path, files: Mapping[str, str]) -> None:
        """Make a folder of links to blobs, in place of an older one. Raises: OSError"""
        shutil.rmtree(folder, ignore_errors=True)
        if not files:
            return
        folder.parent.mkdir(parents=True, exist_ok=True)
        new = Path(tempfile.mkdtemp(prefix=_NEW, dir=folder.parent))
        for file, digits in files.items():
            (new / file).symlink_to(self.blobs.path(digits))
        new.rename(folder)


def served(folder: Path) -> Path:
    """Return what of a model's files is served: the first GGUF file, or the folder."""
    if (folder / "config.json").is_file():
        return folder
    ggufs = models_below(folder) if folder.is_dir() else []
    return folder / ggufs[0].files[0] if ggufs else folder / f"model{ENDING}"

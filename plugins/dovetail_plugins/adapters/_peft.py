"""PEFT's folders: adapter_config.json with adapter_model.safetensors or .bin.

Tensors are named by the module's path in the model that PEFT wrapped, after "base_model.model.".
Source: the checkpoint format page of the PEFT documentation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from dovetail.config.checkpoint.adapter_config import CONFIG, WEIGHTS
from dovetail.errors import ConfigError
from dovetail.interfaces.adapter import ModuleChange
from dovetail_plugins.load_formats._safetensors_file import WholeFile

PREFIX = "base_model.model."
ADDED_TOKENS = ("new_embeddings.safetensors", "new_embeddings.bin")
"""Files in which vLLM (up to 0.11) keeps the vectors of tokens that an adapter adds."""
ADDED_INPUTS, ADDED_OUTPUTS = "input_embeddings", "output_embeddings"
"""Their tensors: the rows of these tokens in the token table and in the head."""


Tensors = dict[str, torch.Tensor]


class ModuleChanges(Mapping[str, ModuleChange]):
    """Changes by module that are computed on first access."""

    def __init__(self, find: Callable[[], Mapping[str, ModuleChange]]) -> None:
        self._find = find
        self._found: Mapping[str, ModuleChange] | None = None

    def find(self) -> Mapping[str, ModuleChange]:
        """Return the changes. Raises: ConfigError. Mutates: self"""
        if self._found is None:
            self._found = self._find()
        return self._found

    def __getitem__(self, module: str) -> ModuleChange:
        return self.find()[module]

    def __iter__(self) -> Iterator[str]:
        return iter(self.find())

    def __len__(self) -> int:
        return len(self.find())


def tensors_of(folder: Path) -> Tensors:
    """Return a folder's tensors by name, without the prefix. Raises: ConfigError naming the file"""
    file = read_file(folder)
    if isinstance(file, WholeFile):
        file.read()
    return named(file)


def read_file(folder: Path) -> WholeFile | Tensors:
    """Return the file of a folder's weights, which is not read yet, or the tensors of a .bin.
    Raises: ConfigError naming the file"""
    path = next((folder / name for name in WEIGHTS if (folder / name).is_file()), None)
    if path is None:
        raise ConfigError(
            f"there is neither {WEIGHTS[0]} nor {WEIGHTS[1]}.",
            where=str(folder),
            fix="name a folder that PEFT has saved an adapter in.",
        )
    return _read(path)


def read_added(folder: Path) -> tuple[Path, Tensors] | None:
    """Return the file of added tokens and its tensors, None if there is none. Raises: ConfigError
    naming the file"""
    path = next((folder / name for name in ADDED_TOKENS if (folder / name).is_file()), None)
    if path is None:
        return None
    file = _read(path)
    tensors = dict(file.tensors()) if isinstance(file, WholeFile) else file
    unknown = ", ".join(sorted(tensors.keys() - {ADDED_INPUTS, ADDED_OUTPUTS}))
    if unknown or ADDED_INPUTS not in tensors:
        what = f"holds {unknown}, which is not known" if unknown else f"has no {ADDED_INPUTS}"
        raise ConfigError(
            f"the file {what}.", where=str(path), fix=f"keep {ADDED_INPUTS}, {ADDED_OUTPUTS} in it."
        )
    return path, tensors


def _read(path: Path) -> WholeFile | Tensors:
    """Return a file, or the tensors of a .bin. Raises: ConfigError naming the file"""
    if path.suffix != ".safetensors":
        return _unpickled(path)
    try:
        return WholeFile(path)
    except (OSError, RuntimeError) as error:
        raise ConfigError(f"the file cannot be read: {error}.", where=str(path)) from error


def named(file: WholeFile | Tensors) -> Tensors:
    """Return a file's tensors by name, without the prefix; their numbers are there once it is read.
    Raises: ConfigError naming the file"""
    tensors = file.views() if isinstance(file, WholeFile) else file.items()
    return {name.removeprefix(PREFIX): tensor for name, tensor in tensors}


def _unpickled(path: Path) -> Tensors:
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError) as error:
        raise ConfigError(f"the file cannot be read: {error}.", where=str(path)) from error
    except Exception as error:  # unpickling errors have many types
        raise ConfigError(
            f"the file holds more than tensors, so it is not loaded: {error}.",
            where=str(path),
            fix="save the adapter as safetensors.",
        ) from error
    if not isinstance(found, Mapping) or not all(torch.is_tensor(t) for t in found.values()):
        raise ConfigError("the file does not map names to tensors.", where=str(path))
    return dict(found)


def saved_whole(folder: Path, tensors: Mapping[str, torch.Tensor]) -> dict[str, ModuleChange]:
    """Return the modules that `modules_to_save` keeps whole. Raises: ConfigError for a tensor that
    is not a module's weight or bias"""
    found: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensor in tensors.items():
        module, _, part = name.rpartition(".")
        if part not in ("weight", "bias"):
            raise ConfigError("the tensor is not known.", where=f"{folder}: {name}")
        found.setdefault(module.replace(".modules_to_save", ""), {})[part] = tensor
    return {
        module: ModuleChange(weight=parts.get("weight"), bias=parts.get("bias"))
        for module, parts in found.items()
    }


def setting(folder: Path, config: Mapping[str, Any], key: str, kind: type, default: Any) -> Any:
    """Return a value of adapter_config.json. Raises: ConfigError naming the key"""
    value = config.get(key, default)
    value = default if value is None else value
    is_number = kind is float and isinstance(value, int) and not isinstance(value, bool)
    if not isinstance(value, kind) and not is_number:
        raise ConfigError(f"{value!r} is not {kind.__name__}.", where=f"{folder / CONFIG}: {key}")
    return value

"""Find an adapter: in a local folder, the hub's cache, or on the hub."""

from __future__ import annotations

from pathlib import Path

from dovetail.config.checkpoint.adapter_config import CONFIG, WEIGHTS
from dovetail.config.checkpoint.sources.hub import Hub, Wanted, cached, check_online, fetch
from dovetail.config.checkpoint.sources.model_path import is_hub_id
from dovetail.config.checkpoint.sources.weights_check import is_whole_model
from dovetail.errors import ConfigError


def find_adapter(name: str, hub: Hub, *, where: str) -> Path:
    """Return the folder or file of an adapter, given by a path or a hub id.

    Fetched from the hub only if the cache does not contain all of it. Raises: ConfigError naming
    the folder, with `where` (a flag, a field)
    """
    path = Path(name).expanduser()
    if path.is_dir():
        return _checked(path.resolve(), where)
    if is_whole_model(path):
        return path.resolve()
    if path.exists():
        raise ConfigError(f"{name} is a file.", where=where, fix=f"name its folder: {path.parent}")
    if not is_hub_id(name):
        raise ConfigError(
            f"there is no folder {name}.", where=where, fix="name a folder that an adapter is in."
        )
    wanted = Wanted(where, name, None)
    folder = cached(wanted, hub)
    if folder is not None and _is_whole(folder):
        return folder
    check_online(wanted)
    return _checked(fetch(wanted, hub), where)


def _is_whole(folder: Path) -> bool:
    has_weights = any((folder / name).is_file() for name in WEIGHTS)
    return has_weights and (folder / CONFIG).is_file()


def _checked(folder: Path, where: str) -> Path:
    """Return the folder, or its only file of weights and settings. Raises: ConfigError if it
    contains no adapter"""
    files = [file for file in folder.glob("*") if is_whole_model(file)]
    if not (folder / CONFIG).is_file() and len(files) != 1:
        raise ConfigError(
            f"there is no {CONFIG} in {folder}.",
            where=where,
            fix="name the folder that PEFT has saved an adapter in, or a GGUF file.",
        )
    return folder if (folder / CONFIG).is_file() else files[0]

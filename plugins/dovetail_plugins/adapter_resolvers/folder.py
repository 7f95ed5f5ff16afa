"""Adapters in subfolders of one folder, or GGUF files in it, whose names requests use."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dovetail.config.checkpoint.adapter_config import CONFIG
from dovetail.errors import ConfigError
from dovetail.interfaces.adapter_resolver import AdapterResolver, ResolverFacts
from dovetail.interfaces.data.adapter_spec import AdapterSource
from dovetail.interfaces.plugin import Info
from dovetail.json_values import json_value
from dovetail_plugins.gguf.reading.file import SUFFIX, read_head

BASE = "base_model_name_or_path"
FILE_BASE = "general.base_model.0"
HUB = "https://huggingface.co/"
log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class _Options:
    path: str = field(
        default="",
        metadata={"help": "folder of the adapters; --lora-resolver-cache-dir sets it"},
    )


class FolderResolver(AdapterResolver):
    """PATH/NAME, if its adapter_config.json names the served model as its base, or PATH/NAME.gguf,
    if its settings do.

    Only direct subfolders and files of PATH have names; a link in it may lead anywhere.
    """

    info = Info(summary="adapters in the subfolders of a folder, under the folders' names")
    Options = _Options

    @classmethod
    def sample_options(cls, folder: Path) -> Mapping[str, Any]:
        """Return the folder itself."""
        return {"path": str(folder)}

    def __init__(self, options: Any, facts: ResolverFacts) -> None:
        self._facts = facts
        if not options.path:
            raise ConfigError(
                "no folder says where adapters lie.",
                where="--lora-resolvers folder",
                fix="give --lora-resolver-cache-dir DIR.",
            )
        self._folder = Path(options.path).expanduser().absolute()
        if not self._folder.is_dir():
            raise ConfigError(
                f"there is no folder {options.path}.",
                where="--lora-resolver-cache-dir",
                fix="make it, or name another one.",
            )

    def find(self, name: str) -> AdapterSource | None:
        """Return the adapter in the folder, or the file, of this name."""
        if not _is_plain(name):
            return None
        folder = self._folder / name
        base = _base_of(folder)
        if base is None:
            folder = self._folder / f"{name}{SUFFIX}"
            base = _base_of_file(folder)
        if base is None:
            return None
        if not self._facts.fits(base):
            log.info(
                "%s was made for %r, not for the model that is served here (%s)",
                folder,
                base,
                ", ".join(self._facts.base_names),
            )
            return None
        return AdapterSource(name=name, path=str(folder), base=base)


def _base_of(folder: Path) -> str | None:
    """Return the base model that an adapter's folder names, None if there is no such folder."""
    try:
        config = json_value((folder / CONFIG).read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        log.warning("%s cannot be read: %s", folder / CONFIG, error)
        return None
    return str(config.get(BASE) or "") if isinstance(config, dict) else ""


def _base_of_file(file: Path) -> str | None:
    """Return the base model that a GGUF file names, None if there is no such file."""
    try:
        if not file.is_file():
            return None
    except OSError:  # a name that is too long
        return None
    try:
        settings = read_head(file).settings
    except ConfigError as error:
        log.warning("%s", error)
        return None
    url = str(settings.get(f"{FILE_BASE}.repo_url") or "")
    return url.removeprefix(HUB) or str(settings.get(f"{FILE_BASE}.name") or "")


def _is_plain(name: str) -> bool:
    """Return whether a name is a plain folder name, which leads nowhere else.

    A lone surrogate, which JSON can spell and UTF-8 cannot, names nothing.
    """
    if name in ("", ".", "..") or any(mark in name for mark in ("/", "\\", "\0")):
        return False
    return len(name.encode(errors="ignore").decode()) == len(name)

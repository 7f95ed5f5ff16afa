"""Find a model: in a local folder or file, a store of this machine, the hub, or the demo model.

A local or cached model is found without any connection attempt. huggingface_hub is imported only to
fetch a model.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from dovetail.config.checkpoint.sources.hub import (
    Hub,
    Wanted,
    cached,
    check_online,
    fetch,
    fetch_quant,
)
from dovetail.config.checkpoint.sources.stores import Stores
from dovetail.config.checkpoint.sources.weights_check import (
    WHOLE_MODELS,
    has_config,
    is_whole_model,
)
from dovetail.errors import ConfigError
from dovetail.interfaces.model_store import StoredModel, WantedModel

log = logging.getLogger(__name__)

DEMO_PATH = Path(__file__).resolve().parents[3] / "demo_model"
DEMO_NAME = "dovetail-demo"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
    "tekken.json",
    *(f"tokenizer.model.v{version}" for version in range(1, 8)),
)


def find_model(
    model: str | None,
    *,
    revision: str | None = None,
    hub: Hub | None = None,
    needs_weights: bool = True,
    every_format: bool = False,
    model_dirs: Sequence[str] = (),
) -> Path:
    """Return a model's folder, or its single file.

    It is fetched from the hub only if no store of this machine has it, with its weights in
    `every_format` or in one. Raises: ConfigError if there is no such folder or the hub does not
    provide it.
    """
    if model is None:
        return _demo()
    path = _existing(model, flag="--model")
    if path is not None:
        return path
    hub = hub or Hub()
    wanted = Wanted("--model", model, revision)
    stores = Stores.of(model_dirs, hub.cache, hub.is_modelscope)
    found = stores.find(WantedModel(name=model, revision=revision, needs_weights=needs_weights))
    if found is not None:
        return _usable(found)
    repo, _, quant = model.partition(":")
    if quant and "/" in repo and _HUB_ID.fullmatch(repo):
        return fetch_quant(Wanted("--model", repo, revision), quant, hub)
    if local_folder(model, flag="--model") is None:
        check_online(wanted)
    return fetch(wanted, hub, needs_weights=needs_weights, every_format=every_format)


def _usable(found: StoredModel) -> Path:
    """Return the path of a stored model. Raises: ConfigError if it cannot be served"""
    if found.fault:
        raise ConfigError(
            f"{found.name} is in {found.store}, but {found.fault}.",
            where="--model",
            fix="`dovetail list` shows what can be served.",
        )
    log.info("%s is in %s: %s", found.name, found.store, found.path)
    return found.path


def is_hub_id(name: str) -> bool:
    """Return whether this could be the name of a model on the hub."""
    return _HUB_ID.fullmatch(name) is not None


def find_config(name: str, *, hub: Hub | None = None) -> Path:
    """Return the folder of another config.json, local or from the hub. Raises: ConfigError"""
    folder = local_folder(name, flag="--hf-config-path")
    if folder is not None:
        return folder
    return _cached_or_fetched(Wanted("--hf-config-path", name, None), hub or Hub(), has_config)


def find_tokenizer(
    tokenizer: str | None,
    model_path: Path,
    *,
    revision: str | None = None,
    hub: Hub | None = None,
    fits: Callable[[Path], bool] | None = None,
) -> Path:
    """Return the folder of the tokenizer, or a file that contains the whole model.

    `fits` returns whether a tokenizer plugin knows the path (None: by the names of common files).
    Raises: ConfigError if it contains no tokenizer file.
    """
    is_one = fits or has_tokenizer
    if tokenizer is None:
        folder = model_path
    else:
        local = local_folder(tokenizer, flag="--tokenizer")
        wanted = Wanted("--tokenizer", tokenizer, revision)
        folder = local or _cached_or_fetched(wanted, hub or Hub(), is_one)
    if not is_one(folder):
        raise ConfigError(
            "the folder has no tokenizer (tokenizer.json, tokenizer.model, vocab.json, ...).",
            where=str(folder),
            fix="name another folder or hub id with --tokenizer.",
        )
    return folder


def _cached_or_fetched(wanted: Wanted, hub: Hub, is_whole: Callable[[Path], bool]) -> Path:
    """Return a folder from the hub without weights. Raises: ConfigError"""
    folder = cached(wanted, hub)
    if folder is not None and is_whole(folder):
        return folder
    check_online(wanted)
    return fetch(wanted, hub, needs_weights=False)


def _existing(name: str, *, flag: str) -> Path | None:
    """Return the folder or single-file model at a path, None if neither. Raises: ConfigError for
    another file"""
    path = Path(name).expanduser()
    if path.is_dir():
        return path.resolve()
    if is_whole_model(path):
        return path.absolute()  # keep a link's name: it is more telling than its target's
    if path.is_file():
        raise ConfigError(
            f"{name} is a file.", where=flag, fix=f"name its folder: {path.parent.resolve()}"
        )
    return None


def local_folder(name: str, *, flag: str) -> Path | None:
    """Return the folder (or single-file model) if `name` is one, None if it must be a hub id.

    Raises: ConfigError
    """
    path = _existing(name, flag=flag)
    if path is not None or _HUB_ID.fullmatch(name):
        return path
    if ":" in name and "\\" not in name and not name.startswith((".", "/", "~")):
        raise ConfigError(
            f"there is no model {name} on this machine.",
            where=flag,
            fix="`dovetail list` shows those that are there; `dovetail pull ORG/MODEL:QUANT` "
            "fetches one.",
        )
    parent = Path(name).expanduser().parent
    beside = [p.name for p in parent.iterdir() if p.is_dir()] if parent.is_dir() else []
    hint = f"{parent} has {', '.join(sorted(beside)[:5])}." if beside else "check the path."
    raise ConfigError(f"there is no folder {name}.", where=flag, fix=hint)


def has_tokenizer(folder: Path) -> bool:
    """Return whether the path contains any tokenizer file, or is one."""
    if any((folder / name).is_file() for name in _TOKENIZER_FILES) or is_whole_model(folder):
        return True
    return any(next(folder.glob(f"*{ending}"), None) for ending in WHOLE_MODELS)


def _demo() -> Path:
    if not has_config(DEMO_PATH):
        raise ConfigError(
            "this installation has no demo model.",
            where="--model",
            fix="name a model: `dovetail serve Qwen/Qwen3-0.6B`.",
        )
    log.info(
        "No model was named: serving the bundled demo model, a 2-million-parameter toy that "
        "knows a few hundred facts. Name a model to serve it: `dovetail serve Qwen/Qwen3-0.6B`."
    )
    return DEMO_PATH

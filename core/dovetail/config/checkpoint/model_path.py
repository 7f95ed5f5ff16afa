"""Where a model lies: a local folder or file, the hub's cache, or the bundled demo model.

A local or cached model is found without any connection attempt. huggingface_hub is imported only
when a hub id has to be looked up.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dovetail.config.checkpoint.weights_check import WHOLE_MODELS, has_weights, is_whole_model
from dovetail.errors import ConfigError

log = logging.getLogger(__name__)

DEMO_PATH = Path(__file__).resolve().parents[2] / "demo_model"
DEMO_NAME = "dovetail-demo"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_SETTINGS = ["*.json", "*.jinja", "*.model", "*.model.v*", "*.txt", "*.tiktoken"]
_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
    "tekken.json",
    *(f"tokenizer.model.v{version}" for version in range(1, 8)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hub:
    """How the hub is asked: the folder of its cache, and who asks.

    `token` None lets the hub's client find one (HF_TOKEN, or a saved login); empty means that a
    login must have been saved.
    """

    cache: str | None = None
    token: str | None = field(default=None, repr=False)

    @property
    def login(self) -> str | bool | None:
        """Return the token for the hub's client."""
        return True if self.token == "" else self.token

    def masked(self, text: str) -> str:
        """Return the text without the token."""
        return text.replace(self.token, "***") if self.token else text


def find_model(
    model: str | None,
    *,
    revision: str | None = None,
    hub: Hub | None = None,
    needs_weights: bool = True,
) -> Path:
    """Return the folder of a model, or the one file that it is; fetched from the hub only when it
    is neither local nor cached.

    Raises: ConfigError when there is no such folder or the hub cannot give it.
    """
    if model is None:
        return _demo()
    folder = local_folder(model, flag="--model")
    if folder is not None:
        return folder
    patterns = [*_SETTINGS, "*.safetensors"] if needs_weights else _SETTINGS
    is_whole = has_weights if needs_weights else _has_config
    return _from_hub(_Wanted("--model", model, revision), hub or Hub(), patterns, is_whole)


def find_config(name: str, *, hub: Hub | None = None) -> Path:
    """Return the folder of another config.json, local or the hub's. Raises: ConfigError"""
    folder = local_folder(name, flag="--hf-config-path")
    if folder is not None:
        return folder
    wanted = _Wanted("--hf-config-path", name, None)
    return _from_hub(wanted, hub or Hub(), ["config.json"], _has_config)


def find_tokenizer(
    tokenizer: str | None,
    model_path: Path,
    *,
    revision: str | None = None,
    hub: Hub | None = None,
    fits: Callable[[Path], bool] | None = None,
) -> Path:
    """Return the folder of the tokenizer, or a file that holds the whole model. `fits` says whether
    a tokenizer plugin knows the path (None: by the names of common files).

    Raises: ConfigError when it holds no tokenizer file.
    """
    is_one = fits or has_tokenizer
    if tokenizer is None:
        folder = model_path
    else:
        local = local_folder(tokenizer, flag="--tokenizer")
        wanted = _Wanted("--tokenizer", tokenizer, revision)
        folder = local or _from_hub(wanted, hub or Hub(), _SETTINGS, is_one)
    if not is_one(folder):
        raise ConfigError(
            "the folder has no tokenizer (tokenizer.json, tokenizer.model, vocab.json, ...).",
            where=str(folder),
            fix="name another folder or hub id with --tokenizer.",
        )
    return folder


def local_folder(name: str, *, flag: str) -> Path | None:
    """Return the folder (or whole model) if `name` is one, None if it can only be a hub id.

    Raises: ConfigError
    """
    path = Path(name).expanduser()
    if path.is_dir() or is_whole_model(path):
        return path.resolve()
    if path.is_file():
        raise ConfigError(
            f"{name} is a file.", where=flag, fix=f"name its folder: {path.parent.resolve()}"
        )
    if _HUB_ID.fullmatch(name):
        return None
    parent = path.parent
    beside = [p.name for p in parent.iterdir() if p.is_dir()] if parent.is_dir() else []
    hint = f"{parent} has {', '.join(sorted(beside)[:5])}." if beside else "check the path."
    raise ConfigError(f"there is no folder {name}.", where=flag, fix=hint)


def has_tokenizer(folder: Path) -> bool:
    """Return whether the path holds any tokenizer file, or is one."""
    if any((folder / name).is_file() for name in _TOKENIZER_FILES) or is_whole_model(folder):
        return True
    return any(next(folder.glob(f"*{ending}"), None) for ending in WHOLE_MODELS)


def _has_config(folder: Path) -> bool:
    return any((folder / name).is_file() for name in ("config.json", "params.json"))


def _demo() -> Path:
    if not _has_config(DEMO_PATH):
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


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What is looked for on the hub, and the flag that names it."""

    flag: str
    name: str
    revision: str | None

    def snapshot(self, hub: Hub, **how: Any) -> Path:
        """Return the folder of the snapshot. Raises: as huggingface_hub does."""
        from huggingface_hub import snapshot_download

        found = snapshot_download(
            self.name, revision=self.revision, cache_dir=hub.cache, token=hub.login, **how
        )
        return Path(str(found))


def _from_hub(
    wanted: _Wanted, hub: Hub, patterns: list[str], is_whole: Callable[[Path], bool]
) -> Path:
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        cached = wanted.snapshot(hub, local_files_only=True)
        if is_whole(cached):
            return cached
    except LocalEntryNotFoundError:
        log.debug("%s is not in the hub's cache.", wanted.name)
    if _is_offline():
        raise ConfigError(
            f"{wanted.name} is neither a folder nor complete in the hub's cache, and "
            "HF_HUB_OFFLINE forbids fetching it.",
            where=wanted.flag,
            fix="check the name, or unset HF_HUB_OFFLINE.",
        )
    return _fetch(wanted, hub, patterns, is_whole)


def _fetch(
    wanted: _Wanted, hub: Hub, patterns: list[str], is_whole: Callable[[Path], bool]
) -> Path:
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    log.info("Fetching %s from the hub.", wanted.name)
    try:
        folder = wanted.snapshot(hub, allow_patterns=patterns)
        if is_whole(folder):
            return folder
        return wanted.snapshot(hub, allow_patterns=[*patterns, "*.bin", "*.pt"])
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        reason = hub.masked(str(error).strip()) or type(error).__name__
        # The cause would carry the token's header into a traceback.
        raise ConfigError(
            f"there is no folder {wanted.name} here, and the hub did not give it: "
            f"{reason.splitlines()[0]}",
            where=wanted.flag,
            fix="check the name and the connection; gated models need --hf-token, HF_TOKEN or "
            "`hf auth login`.",
        ) from None


def _is_offline() -> bool:
    words = (os.environ.get("HF_HUB_OFFLINE", ""), os.environ.get("TRANSFORMERS_OFFLINE", ""))
    return any(word.upper() in ("1", "ON", "YES", "TRUE") for word in words)

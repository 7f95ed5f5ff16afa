"""Fetching from the Hugging Face hub, or another one: only the files a model needs, of one commit.

Cached models are found without a connection (`hub_cache`); huggingface_hub is imported only
to fetch. An interrupted download is resumed.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

from dovetail import registry
from dovetail.config.checkpoint.sources.gguf_names import ENDING, grouped, named, projectors
from dovetail.config.checkpoint.sources.hub_cache import cache_folder, snapshot
from dovetail.config.checkpoint.sources.weights_check import NOT_WEIGHTS
from dovetail.errors import ConfigError
from dovetail.interfaces.model_store import ModelStore, StorePlaces, WantedModel

log = logging.getLogger(__name__)

SETTINGS = ("*.json", "*.jinja", "*.model", "*.model.v*", "*.txt", "*.tiktoken")
"""Patterns of files other than weights; subfolders contain other formats of the weights."""
CODE = "*.py"
_TEMPLATES = "additional_chat_templates/"
_ORIGINALS = "consolidated*"
"""Weights in their authors' own format, next to the same weights in the usual one."""
_OLDER = (".bin", ".pt")
MAX_NAMED = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Hub:
    """How to reach the hub: the cache folder, and the token.

    With `token` None the hub's client finds one (HF_TOKEN, or a saved login); an empty one requires
    a saved login. With `is_modelscope`, the model store of that name fetches instead.
    """

    cache: str | None = None
    token: str | None = field(default=None, repr=False)
    is_modelscope: bool = False

    @property
    def login(self) -> str | bool | None:
        """Return the token for the hub's client."""
        return True if self.token == "" else self.token

    def other_store(self) -> ModelStore | None:
        """Return the store that fetches instead of the Hugging Face hub, if one does. Raises:
        UnknownPlugin"""
        if not self.is_modelscope:
            return None
        places = StorePlaces(download_dir=self.cache, use_modelscope=True)
        store: ModelStore = registry.make(registry.choose("model_store", "modelscope"), places)
        return store

    def masked(self, text: str) -> str:
        """Return the text without the token."""
        return text.replace(self.token, "***") if self.token else text


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to look for on the hub, and the flag or command that names it."""

    flag: str
    name: str
    revision: str | None

    @property
    def model(self) -> WantedModel:
        """Return the same for a store."""
        return WantedModel(name=self.name, revision=self.revision)


def cached(wanted: Wanted, hub: Hub) -> Path | None:
    """Return the folder of a cached revision, complete or not; None if it is not cached."""
    if (store := hub.other_store()) is not None:
        folder = store.folder(wanted.model)
        return folder if folder.is_dir() else None
    return snapshot(cache_folder(hub.cache), wanted.name, wanted.revision)


def check_online(wanted: Wanted) -> None:
    """Raise ConfigError if a variable forbids using the hub."""
    if _is_offline():
        raise ConfigError(
            f"{wanted.name} is neither a folder nor complete in the hub's cache, and "
            "HF_HUB_OFFLINE forbids fetching it.",
            where=wanted.flag,
            fix="check the name, or unset HF_HUB_OFFLINE.",
        )


def check_allowed(wanted: Wanted) -> None:
    """Raise ConfigError if a variable forbids using the hub, whatever is cached."""
    if _is_offline():
        raise ConfigError(
            "HF_HUB_OFFLINE forbids fetching anything.", where=wanted.flag, fix="unset it."
        )


def fetch(
    wanted: Wanted,
    hub: Hub,
    *,
    needs_weights: bool = True,
    every_format: bool = False,
    has_code: bool = False,
) -> Path:
    """Return the folder of a model with all files that it needs, fetching the missing ones.

    `every_format`: a load format was named, which may need other files of the same weights.
    `has_code`: include its Python files, which may be run on request.

    Raises: ConfigError if the hub does not provide it, or has only GGUF files
    """
    with client_errors(wanted, hub):
        names = _listed(wanted, hub)
        ggufs = [one.label or one.stem for one in grouped(names)]
        needed = needed_files(names, with_weights=needs_weights, every_format=every_format)
        if needs_weights and ggufs and set(needed) <= set(needed_files(names, with_weights=False)):
            raise _unnamed_quant(wanted, ggufs)
        code = [name for name in names if has_code and fnmatch(name, CODE) and "/" not in name]
        return _download(wanted, hub, [*needed, *code])


def fetch_quant(wanted: Wanted, quant: str, hub: Hub) -> Path:
    """Return the (first) file of the GGUF model with this quantization or file name, fetched with
    the repository's projector. Raises: ConfigError if none or several match, or the hub does not
    provide it"""
    check_online(wanted)
    with client_errors(wanted, hub):
        names = _listed(wanted, hub)
        ggufs = grouped(names)
        found = named(ggufs, quant)
        if len(found) != 1:
            raise _other_quant(wanted, quant, [one.label or one.stem for one in found or ggufs])
        files = [*found[0].files, *projectors(names)[:1]]
        return _download(wanted, hub, files) / files[0]


def needed_files(
    names: Sequence[str], *, with_weights: bool, every_format: bool = False
) -> list[str]:
    """Return a repository's files that a model needs: one format of its weights, or all formats."""
    top = [name for name in names if "/" not in name]
    needed = [n for n in names if n.startswith(_TEMPLATES)]
    needed += [name for name in top if any(fnmatch(name, pattern) for pattern in SETTINGS)]
    if not with_weights:
        return needed
    tensors = [name for name in top if name.endswith(".safetensors")]
    usual = [name for name in tensors if not fnmatch(name, _ORIGINALS)]
    older = [name for name in top if name.endswith(_OLDER) and name not in NOT_WEIGHTS]
    return needed + (tensors + older if every_format else usual or tensors or older)


def _listed(wanted: Wanted, hub: Hub) -> list[str]:
    """Return the names of all files of a revision. Raises: as huggingface_hub does"""
    if (store := hub.other_store()) is not None:
        return store.listed(wanted.model)
    from huggingface_hub import HfApi

    info = HfApi(token=hub.login).model_info(wanted.name, revision=wanted.revision)
    return [one.rfilename for one in info.siblings or ()]


def _download(wanted: Wanted, hub: Hub, names: Sequence[str]) -> Path:
    """Return the folder of the revision with these files. Raises: as huggingface_hub does"""
    log.info("Fetching %s from the hub: %d files.", wanted.name, len(names))
    if (store := hub.other_store()) is not None:
        return store.download(wanted.model, names)
    from huggingface_hub import snapshot_download

    patterns = [name.replace("[", "[[]") for name in names]
    found = snapshot_download(
        wanted.name,
        revision=wanted.revision,
        cache_dir=hub.cache,
        token=hub.login,
        allow_patterns=patterns,
    )
    return Path(str(found))


@contextmanager
def client_errors(wanted: Wanted, hub: Hub) -> Iterator[None]:
    """Turn a failure of the hub's client into one error. Raises: ConfigError"""
    from huggingface_hub.errors import HfHubHTTPError, HTTPError, LocalEntryNotFoundError

    try:
        yield
    except (HfHubHTTPError, HTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        reason = hub.masked(str(error).strip()) or type(error).__name__
        # The cause would expose the token's header in a traceback.
        raise ConfigError(
            f"{_error_start(wanted)}the hub did not give it: {reason.splitlines()[0]}",
            where=wanted.flag,
            fix="check the name and the connection; gated models need --hf-token, HF_TOKEN or "
            "`hf auth login`.",
        ) from None


def _error_start(wanted: Wanted) -> str:
    """Return the start of an error: a flag may also mean a folder, a command cannot."""
    is_flag = wanted.flag.startswith("-")
    return f"there is no folder {wanted.name} here, and " if is_flag else f"{wanted.name}: "


def _unnamed_quant(wanted: Wanted, labels: Sequence[str]) -> ConfigError:
    return ConfigError(
        f"{wanted.name} holds only *{ENDING} files, one model each: {_some(labels)}.",
        where=wanted.flag,
        fix=f"name one of them: {wanted.name}:{labels[0]}",
    )


def _other_quant(wanted: Wanted, quant: str, labels: Sequence[str]) -> ConfigError:
    if not labels:
        return ConfigError(f"{wanted.name} has no *{ENDING} file.", where=wanted.flag)
    return ConfigError(
        f"{wanted.name} has not one {quant}, but {_some(labels)}.",
        where=wanted.flag,
        fix=f"name one of them, or a file: {wanted.name}:{labels[0]}",
    )


def _some(labels: Sequence[str]) -> str:
    return ", ".join(labels[:MAX_NAMED]) + (", ..." if len(labels) > MAX_NAMED else "")


def _is_offline() -> bool:
    words = (os.environ.get("HF_HUB_OFFLINE", ""), os.environ.get("TRANSFORMERS_OFFLINE", ""))
    return any(word.upper() in ("1", "ON", "YES", "TRUE") for word in words)

"""Code that comes with a checkpoint: it runs only if the user allows it and pins its version.

--trust-remote-code allows it. A pin is a full commit hash of the hub, or the digest of the files
(`sha256:...`); a local folder can only have a digest. The files are read once, here; every process
gets their text. Nothing is executed here.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from dovetail import registry
from dovetail.config.checkpoint.code_files import MissingCode, read_code
from dovetail.config.checkpoint.sources.hub import Hub, Wanted, check_online, fetch
from dovetail.config.checkpoint.sources.hub_cache import commit_of, is_commit
from dovetail.config.rules.model.architectures import registered
from dovetail.config.rules.model.model_impl import wanted_impl
from dovetail.config.rules.model.transformers_models import known_classes
from dovetail.config.sections.model import ModelConfig
from dovetail.errors import ConfigError
from dovetail.interfaces.data.checkpoint_code import CAUSAL, CONFIG, TOKENIZER, CheckpointCode
from dovetail.interfaces.data.spec import ModelSpec, Selection

log = logging.getLogger(__name__)

ALLOW = "--trust-remote-code"
DIGEST = "sha256:"
"""Prefix of a pin by content."""
OPTION = "code"
"""The option that passes a tokenizer the code that it may run."""
GUIDE = "docs/how_to/run_code_of_checkpoints.md"
_USERS = {
    CONFIG: "the settings in every worker process",
    CAUSAL: "the model in every worker process",
    TOKENIZER: "the tokenizer in the server's and the engine's processes",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeSource:
    """The source of code: a folder, its name on the hub (None: not from the hub), and the pin with
    the flag that sets it."""

    folder: Path
    name: str | None
    flag: str
    pin: str | None
    revision: str | None


@dataclass(frozen=True, slots=True)
class CodePin:
    """The --code-revision pin for the code of a tokenizer that is given by a path or hub id."""

    name: str
    pin: str | None

    def source(self, folder: Path) -> CodeSource:
        """Return the source of the code if the tokenizer is in this folder."""
        name, revision = _hub_name(self.name), hub_revision(self.pin)
        return CodeSource(
            folder=folder, name=name, flag="--code-revision", pin=self.pin, revision=revision
        )


def hub_revision(pin: str | None) -> str | None:
    """Return the branch, tag or commit that a flag names, None for a digest."""
    return None if pin is None or pin.startswith(DIGEST) else pin


def model_code(model_config: ModelConfig, model: ModelSpec, hub: Hub) -> CheckpointCode | None:
    """Return the code of a model's class if nothing else can run the model, else None. Raises:
    ConfigError if it may not run"""
    if not _needs_code(model_config, model):
        return None
    if not model_config.trust_remote_code:
        raise ConfigError(
            f"{model.architecture} is code that comes with the checkpoint, which does not run "
            "unless it is asked for.",
            where="the checkpoint's architectures",
            fix=f"read the code, then give {ALLOW} ({GUIDE}).",
        )
    return _allowed(_of_model(model_config, Path(model.path)), hub, (CONFIG, CAUSAL))


def tokenizer_source(model_config: ModelConfig, folder: Path) -> CodeSource:
    """Return the source of a tokenizer's code: the model's folder, or that of --tokenizer."""
    is_models = model_config.tokenizer is None
    return _of_model(model_config, folder) if is_models else _of_tokenizer(model_config, folder)


def with_code(tokenizer: Selection, source: CodeSource, hub: Hub) -> Selection:
    """Return a tokenizer that may run code, with the code it runs, if any. Raises: ConfigError if
    the pin does not match the code"""
    if not registry.admin.load_selection(tokenizer).runs_code(str(source.folder)):
        return tokenizer
    code = msgspec.to_builtins(_allowed(source, hub, (TOKENIZER,)))
    return msgspec.structs.replace(tokenizer, options={**tokenizer.options, OPTION: code})


def refuse_option(options: Mapping[str, Any]) -> None:
    """Raise ConfigError if a user's options contain code."""
    if OPTION in options:
        raise ConfigError(
            "code is not given as an option.",
            where=f"--plugin-options.tokenizer.{OPTION}",
            fix=f"use {ALLOW}.",
        )


def tell_unused(model_config: ModelConfig, *, is_used: bool) -> None:
    """Log flags about code that have no effect."""
    if model_config.trust_remote_code and not is_used:
        log.info(
            "%s runs nothing: nothing of this checkpoint needs code that comes with it.", ALLOW
        )
    if model_config.code_revision and not model_config.trust_remote_code:
        log.warning("--code-revision has no effect without %s: no code runs.", ALLOW)


def _needs_code(model_config: ModelConfig, model: ModelSpec) -> bool:
    """Return whether only the checkpoint's own class can run a model."""
    if CAUSAL not in (model.hf_config.get("auto_map") or {}):
        return False
    impl = wanted_impl(model_config)
    own = registered(model.architecture, model.head)
    is_taken = impl not in (None, "transformers") or (impl is None and own is not None)
    return not is_taken and model.architecture not in known_classes().every


def _of_model(model_config: ModelConfig, folder: Path) -> CodeSource:
    is_commit_given = is_commit(model_config.revision) and model_config.code_revision is None
    return CodeSource(
        folder=folder,
        name=_hub_name(model_config.model),
        flag="--revision" if is_commit_given else "--code-revision",
        pin=model_config.revision if is_commit_given else model_config.code_revision,
        revision=model_config.revision,
    )


def _of_tokenizer(model_config: ModelConfig, folder: Path) -> CodeSource:
    return CodeSource(
        folder=folder,
        name=_hub_name(model_config.tokenizer),
        flag="--tokenizer-revision",
        pin=model_config.tokenizer_revision,
        revision=hub_revision(model_config.tokenizer_revision),
    )


def _hub_name(name: str | None) -> str | None:
    """Return the name of a model on the hub, None for a path."""
    return None if name is None or Path(name).expanduser().exists() else name


def _allowed(source: CodeSource, hub: Hub, used: tuple[str, ...]) -> CheckpointCode:
    """Return a source's code if it matches the pin. Raises: ConfigError"""
    folder = _folder(source, hub)
    code = read_code(folder)
    names = ", ".join(code.files)
    by_digest = f"{DIGEST}{code.digest}"
    is_same = source.pin == by_digest or (
        source.name is not None and is_commit(source.pin) and source.pin == commit_of(folder)
    )
    if not is_same:
        raise _unpinned(source, folder, names, by_digest)
    users = "; ".join(_USERS[kind] for kind in used if kind in code.classes)
    log.warning(
        "Code of %s runs with all rights of this user (%s): %s. Its digest is %s.",
        *(folder, users, names, by_digest),
    )
    return code


def _unpinned(source: CodeSource, folder: Path, names: str, by_digest: str) -> ConfigError:
    """Return the error for a pin that is missing or does not match."""
    pin = source.pin
    if pin is None:
        what = f"{ALLOW} runs code ({names}), and nothing says which version of it was meant."
    elif pin.startswith(DIGEST):
        what = f"the code ({names}) has another digest: {by_digest}."
    elif is_commit(pin):
        what = f"{folder} has no commits of the hub, so {pin} pins nothing in it."
    else:
        what = f'"{pin}" is a branch or a tag, which can move to other code ({names}).'
    commit = "" if source.name is None else ", or the whole hash of a commit"
    return ConfigError(
        what,
        where=source.flag,
        fix=f"read the files, then give {_pin_flag(source)} {by_digest}{commit}.",
    )


def _pin_flag(source: CodeSource) -> str:
    return "--code-revision" if source.flag == "--revision" else source.flag


def _folder(source: CodeSource, hub: Hub) -> Path:
    """Return the folder of the pinned commit, with its code; it is fetched if missing. Raises:
    ConfigError"""
    pin = source.pin if is_commit(source.pin) else None
    is_other = pin is not None and commit_of(source.folder) not in (None, pin)
    if source.name is None or not (is_other or _lacks_code(source.folder)):
        return source.folder
    wanted = Wanted(source.flag, source.name, pin or source.revision)
    check_online(wanted)
    return fetch(wanted, hub, needs_weights=False, has_code=True)


def _lacks_code(folder: Path) -> bool:
    try:
        read_code(folder)
    except MissingCode:
        return True
    return False

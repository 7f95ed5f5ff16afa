"""The Python files that a checkpoint names in `auto_map`: read once, bounded, hashed, never run.

Format: auto_map of config.json and tokenizer_config.json, kind -> "module.Class", in which the
module is a file in the same folder. A tokenizer has a pair; the second is the fast one. Files that
these import by relative imports are included.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dovetail.config.checkpoint.json_files import read_json
from dovetail.config.checkpoint.sources.hub_cache import blobs_of
from dovetail.errors import ConfigError
from dovetail.interfaces.data.checkpoint_code import CAUSAL, CONFIG, TOKENIZER, CheckpointCode

MAX_FILES = 64
MAX_FILE_BYTES = 1 << 20
ELSEWHERE = "--"
"""Separates a repository from the reference to a class in it."""
_REFERENCE = re.compile(r"([A-Za-z_]\w*)\.([A-Za-z_]\w*)")


class MissingCode(ConfigError):
    """A code file is missing from the folder."""


def named_classes(folder: Path) -> dict[str, str]:
    """Return the classes that a folder's settings name, of the kinds that dovetail can use."""
    if not folder.is_dir():
        return {}
    model = read_json(folder / "config.json", is_required=False).get("auto_map")
    text = read_json(folder / "tokenizer_config.json", is_required=False).get("auto_map")
    named = dict(model) if isinstance(model, Mapping) else {}
    named |= text if isinstance(text, Mapping) else {TOKENIZER: text} if text else {}
    found = {kind: _one(named[kind]) for kind in (CONFIG, CAUSAL, TOKENIZER) if kind in named}
    return {kind: reference for kind, reference in found.items() if reference is not None}


def _one(named: Any) -> str | None:
    """Return a reference. From a pair it is the fast tokenizer, or the other if that is null."""
    if isinstance(named, list | tuple):
        return next((one for one in reversed(named) if isinstance(one, str)), None)
    return named if isinstance(named, str) else None


def read_code(folder: Path) -> CheckpointCode:
    """Return the files that a folder's settings name, and all files that these import.

    Raises: ConfigError for a module outside of the folder, MissingCode for a missing file
    """
    classes = named_classes(folder)
    waiting = [_module(folder, reference) for reference in classes.values()]
    files: dict[str, str] = {}
    contents: dict[str, bytes] = {}
    while waiting:
        name = f"{waiting.pop()}.py"
        if name in files:
            continue
        if len(files) == MAX_FILES:
            raise ConfigError(f"its code is of more than {MAX_FILES} files.", where=str(folder))
        contents[name], files[name] = _read(folder, name)
        waiting += _siblings(folder, name, files[name])
    ordered = dict(sorted(files.items()))
    return CheckpointCode(digest=_digest(contents), files=ordered, classes=classes)


def _module(folder: Path, reference: str) -> str:
    """Return the module of a reference. Raises: ConfigError for one in another repository"""
    if ELSEWHERE in reference:
        raise ConfigError(
            f"its settings name code of another repository ({reference}), which is not run.",
            where=str(folder),
            fix="put the files beside config.json in a folder, and name them in its auto_map.",
        )
    found = _REFERENCE.fullmatch(reference)
    if found is None:
        raise ConfigError(
            f'auto_map names "{reference}", which does not name a class in a file beside it.',
            where=str(folder),
            fix='write "file.Class".',
        )
    return found[1]


def _read(folder: Path, name: str) -> tuple[bytes, str]:
    """Return the content of a file as bytes and as text. Raises: ConfigError"""
    file = folder / name
    if not file.is_file():
        raise MissingCode("the code that auto_map names is not there.", where=str(file))
    target, home = file.resolve(), folder.resolve()
    if not any(target.is_relative_to(place) for place in (home, blobs_of(home)) if place):
        raise ConfigError(
            f"it is a link that leads out of the folder, to {target}.",
            where=str(file),
            fix="copy the file into the folder.",
        )
    with file.open("rb") as opened:
        content = opened.read(MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        raise ConfigError(f"code of more than {MAX_FILE_BYTES} bytes.", where=str(file))
    try:
        return content, content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError("code that is not UTF-8.", where=str(file)) from error


def _siblings(folder: Path, name: str, text: str) -> Iterator[str]:
    """Yield the modules of the folder that a file imports by relative imports; names without a file
    there are skipped. Raises: ConfigError for a file that is not Python"""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise ConfigError(f"it is not Python: {error}.", where=str(folder / name)) from error
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom) or node.level != 1:
            continue
        modules = [node.module] if node.module else [one.name for one in node.names]
        for module in modules:
            if (folder / f"{module}.py").exists():
                yield module


def _digest(contents: Mapping[str, bytes]) -> str:
    """Return the SHA-256 of all files, as `sha256sum NAMES | sha256sum` prints it."""
    lines = (f"{hashlib.sha256(contents[name]).hexdigest()}  {name}\n" for name in sorted(contents))
    return hashlib.sha256("".join(lines).encode()).hexdigest()

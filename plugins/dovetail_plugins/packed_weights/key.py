"""The key of an entry: everything that packed weights depend on. No torch."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from dovetail import registry
from dovetail.config.checkpoint.sources.weights_check import weight_files
from dovetail.interfaces.data.spec import RunSpec
from dovetail_plugins.gguf.projectors.find import projectors_beside

LAYOUT_VERSION = 2
"""Rises when entries are written otherwise."""
_PACKAGES = ("gguf", "layers", "load_formats", "models", "packed_weights", "quantization")
"""Folders of this package whose code decides what is packed."""


def key_of(run: RunSpec, library: str, isa: str) -> str:
    """Return the key of a rank's packed weights.

    `library`: the name of the native library's file, which has the hash of its sources; `isa`: its
    instruction set.
    """
    facts = {
        "layout": (LAYOUT_VERSION, library, isa, _code()),
        "files": list(_files(run)),
        "model": run.model,
        "plugins": (run.model_plugin, run.load_format, run.quantization),
        "packages": _distributions((run.model_plugin, run.load_format, run.quantization)),
        "rank": run.rank,
        "rest": (run.load_options, run.expert_placement, run.encoder_mode, run.uses_fused_ops,
                 run.ops, run.adapters, run.device),
    }  # fmt: skip
    encoded = msgspec.json.encode(facts, order="deterministic")
    return hashlib.blake2b(encoded, digest_size=20).hexdigest()


def _files(run: RunSpec) -> Iterator[tuple[str, int, int]]:
    """Yield name, bytes and time of change of the files that packed weights are made from: all of a
    checkpoint's folder, of a model in one file its parts and what may be its projector; and those
    that options name, such as a calibration text."""
    path = Path(run.model.path)
    files: set[Path] = set(path.rglob("*"))
    if path.is_file():
        files = {*weight_files(path), *projectors_beside(path)}
    for selection in (run.load_format, run.quantization):
        named = (Path(value) for value in selection.options.values() if isinstance(value, str))
        files |= {file for file in named if file.is_file()}
    for file in sorted(files):
        if file.is_file():
            facts = file.resolve().stat()
            yield str(file), facts.st_size, facts.st_mtime_ns


@cache
def _code() -> list[tuple[str, int, int]]:
    """Return path, bytes and time of change of the code that makes packed weights."""
    here = Path(__file__).resolve().parents[1]
    found = []
    for package in _PACKAGES:
        for file in sorted((here / package).rglob("*.py")):
            facts = file.stat()
            found.append((str(file.relative_to(here)), facts.st_size, facts.st_mtime_ns))
    return found


def _distributions(selections: Iterable[Any]) -> list[str]:
    """Return the packages of plugins, with their versions."""
    from importlib.metadata import PackageNotFoundError, version

    found = []
    for selection in selections:
        module = registry.admin.require_selection(selection).__module__
        name = module.partition(".")[0]
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            found.append(name)
    return found

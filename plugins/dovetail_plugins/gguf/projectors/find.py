"""Which projector file belongs to a model: the named one, or the one next to it that fits.

Imports no torch.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dovetail.config.checkpoint.sources.gguf_names import grouped, label_of, projector_rank
from dovetail.config.checkpoint.sources.hub_cache import commit_of
from dovetail.errors import ConfigError
from dovetail_plugins.gguf.projectors.kinds import projectors
from dovetail_plugins.gguf.projectors.projector import Pair, Projector
from dovetail_plugins.gguf.reading.file import (
    PROJECTORS as PATTERN,
)
from dovetail_plugins.gguf.reading.file import (
    SUFFIX,
    GgufModel,
    files_of,
    read_model,
)

log = logging.getLogger(__name__)

FLAG = "--mmproj"
CLIP = "clip"
_ALONE = "serve the text model alone with --no-mmproj"
_KEYS = ("clip.vision.projector_type", "clip.audio.projector_type")
Found = tuple[Pair, tuple[Projector, ...]]
"""Both files, and how the parts of the projector's are read."""


class UnsupportedProjector(ConfigError):
    """A projector of a type that is not read: its text model can be served alone."""


def projector_of(model: GgufModel, config: Mapping[str, Any], mmproj: str | None) -> Found | None:
    """Return the projector of a text model, None if it is to have none or none is found.

    `config` is the text model's config.json, `mmproj` the value of --mmproj: a file, "" for none,
    None for one next to the model. Raises: ConfigError for a named file that does not fit, for one
    that does not fit although no other model is there, or if several fit equally
    """
    if mmproj is not None:
        return fitting(model, config, _named(mmproj)) if mmproj else None
    fits: list[tuple[Path, Found]] = []
    errors: list[ConfigError] = []
    for file in projectors_beside(model.path):
        try:
            fits.append((file, fitting(model, config, file)))
        except UnsupportedProjector as error:
            log.warning("%s is left out: %s", file.name, error.what)
        except ConfigError as error:
            errors.append(error)
    if fits:
        return _chosen(model.path, fits)
    if errors and _is_alone(model.path):
        errors[0].fix = f"leave it out with --no-mmproj, or name another file with {FLAG}."
        raise errors[0]
    return None


def _named(mmproj: str) -> Path:
    path = Path(mmproj).expanduser()
    if not path.is_file():
        raise ConfigError(f"there is no file {mmproj}.", where=FLAG, fix="check the path.")
    return path.absolute()


def projectors_beside(model: Path) -> list[Path]:
    """Return the projector files in a model's folder; in a snapshot of the hub also above it."""
    above = model.parent.parent
    folders = [model.parent, *([above] if commit_of(above) else [])]
    found = ([*sorted(folder.glob(f"{PATTERN}{SUFFIX}"))] for folder in folders)
    files = next((names for names in found if names), [])
    return [file for file in files if file.is_file() and file != model and _is_first(file)]


def _is_first(file: Path) -> bool:
    """Return whether a file is whole, or the first part of one that is divided."""
    return files_of(file)[0] == file


def _is_alone(model: Path) -> bool:
    """Return whether no other model is in the folder."""
    return len(grouped(file.name for file in model.parent.glob(f"*{SUFFIX}"))) <= 1


def _chosen(model: Path, fits: list[tuple[Path, Found]]) -> Found:
    """Return the file that fits and has the model's name, the preferred one of several. Raises:
    ConfigError if none is."""

    def order(file: Path) -> tuple[int, int]:
        return -_shared_words(model, file), projector_rank(file.name)

    first, found = min(fits, key=lambda one: order(one[0]))
    equal = [file.name for file, _ in fits if order(file) == order(first)]
    if len(equal) > 1:
        raise ConfigError(
            f"the folder has several projector files for this model: {', '.join(equal[:5])}.",
            where=str(model.parent),
            fix=f"name one of them with {FLAG}.",
        )
    if len(fits) > 1:
        log.info("%s of %d projector files is used.", first.name, len(fits))
    return found


def _shared_words(model: Path, file: Path) -> int:
    """Return how many words of a model's name, apart from its quantization, a projector's has."""
    words = []
    for path in (model, file):
        stem = path.name.removesuffix(SUFFIX)
        bare = stem[: len(stem) - len(label_of(stem))].casefold()
        words.append({word for word in re.split(r"[-_.]", bare) if word})
    return len(words[0] & words[1])


def fitting(model: GgufModel, config: Mapping[str, Any], file: Path) -> Found:
    """Return a projector file with how it is read. Raises: ConfigError if it is no such file, of an
    unknown type, or of another model"""
    clip = read_model(file)
    if clip.settings.get("general.architecture") != CLIP:
        raise ConfigError(
            f'its general.architecture is "{clip.settings.get("general.architecture")}": it is not '
            "a projector file.",
            where=str(file),
            fix=f"give {FLAG} a file mmproj*{SUFFIX} of the model.",
        )
    pair = Pair(model, config, clip)
    kinds = _kinds_of(clip)
    unknown = [kind for kind in kinds if kind not in projectors()]
    if unknown:
        known = ", ".join(sorted(projectors()))
        raise UnsupportedProjector(
            f'clip.projector_type "{unknown[0]}" is not supported; {known} are.',
            where=str(file),
            fix=f"{_ALONE}, or the checkpoint that the files were made of.",
        )
    found = tuple(projectors()[kind] for kind in kinds)
    if len({one.family or kind for one, kind in zip(found, kinds, strict=True)}) > 1:
        raise UnsupportedProjector(
            f"it has projectors of images and of sound ({', '.join(kinds)}), which are not "
            "supported together.",
            where=str(file),
            fix=f"{_ALONE}.",
        )
    for kind, projector in zip(kinds, found, strict=True):
        _check(pair, projector, kind)
    return pair, found


def _kinds_of(clip: GgufModel) -> list[str]:
    """Return the types of a file's projectors: one, or that of images and that of sounds."""
    named = (clip.settings.get(key) for key in _KEYS)
    found = [str(kind) for kind in named if kind]
    return found or [str(clip.settings.get("clip.projector_type") or "mlp")]


def _check(pair: Pair, projector: Projector, kind: str) -> None:
    """Raises: ConfigError if the projector is not the text model's, or not whole"""
    architecture, (name, axis) = pair.text.architecture, projector.width
    other = "give the projector file that was made with the text model."
    if architecture not in projector.texts:
        raise pair.fault(
            f'a projector of the type "{kind}" belongs to text models of the architectures '
            f'{", ".join(projector.texts)}; {pair.text.model.path.name} is "{architecture}".',
            fix=other,
        )
    width = pair.matrix(name)[axis]
    if width != pair.hidden_size:
        raise pair.fault(
            f"its vectors have {width} numbers, and {pair.text.model.path.name} takes "
            f"{pair.hidden_size}: it is of another model.",
            fix=other,
        )
    letter = projector.part[0]
    size, heads = (pair.number(one, letter) for one in ("embedding_length", "attention.head_count"))
    if size % heads:
        raise pair.fault(f"its vectors of {size} numbers do not divide into {heads} heads.")
    stated = pair.number("block_count", letter)
    start = f"{letter}.blk."
    blocks = {one.name.split(".")[2] for one in pair.clip.model.extents
              if one.name.startswith(start)}  # fmt: skip
    if len(blocks) != stated:
        raise pair.fault(f"it has {len(blocks)} blocks, its settings say {stated}.")

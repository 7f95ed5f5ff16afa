"""Writes GGUF files of plain tensors. Imports torch.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, version 3.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path

import torch

from dovetail_plugins.gguf._file import ALIGNMENT
from dovetail_plugins.gguf._tensors import DTYPES
from dovetail_plugins.gguf._types import CODES

_NAMES = {dtype: name for name, dtype in DTYPES.items()}


def write_file(
    path: Path, settings: Mapping[str, str], tensors: Mapping[str, torch.Tensor]
) -> None:
    """Write a file of texts as settings and of tensors of plain types."""
    head = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(settings))]
    head += [_text(name) + struct.pack("<I", 8) + _text(text) for name, text in settings.items()]
    offset = 0
    for name, tensor in tensors.items():
        head.append(_described(name, tensor, offset))
        offset += -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT
    with path.open("wb") as file:
        file.write(b"".join(head))
        for tensor in tensors.values():
            file.write(bytes(-file.tell() % ALIGNMENT))
            file.write(tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes())


def _described(name: str, tensor: torch.Tensor, offset: int) -> bytes:
    axes = tensor.shape[::-1]
    code = CODES[_NAMES[tensor.dtype]]
    numbers = struct.pack(f"<I{len(axes)}QIQ", len(axes), *axes, code, offset)
    return _text(name) + numbers


def _text(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw

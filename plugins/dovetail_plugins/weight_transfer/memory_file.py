"""MemoryFile: named tensors in one mapped file of the safetensors format, written in place.

The header's metadata has a key. It is cleared while tensors are written, so a reader that knows the
key notices tensors of another time. A file in /dev/shm is in memory only.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Sequence
from pathlib import Path

import torch

from dovetail.errors import ConfigError, RequestError
from dovetail_plugins.load_formats._safetensors_header import (
    LENGTH_BYTES,
    METADATA,
    read_metadata,
)
from dovetail_plugins.weight_transfer.described import WORDS, Described, checked, item_bytes

KEY = "key"
KEY_CHARS = 128
ALIGNMENT = 8


def described(name: str, tensor: torch.Tensor) -> Described:
    """Return a tensor's description. Raises: RequestError for a type that files do not have"""
    return checked(name, str(tensor.dtype), tensor.shape)


class MemoryFile:
    """A new file, mapped for writing. `tensors` are views of it, by name."""

    def __init__(self, path: Path, contents: Sequence[Described]) -> None:
        """Create it. Raises: RequestError if there is no room; FileExistsError"""
        self.path, self.contents = path, tuple(contents)
        header, self._key_at = _header(self.contents)
        size = len(header) + sum(one.num_bytes for one in contents)
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, size)  # later a lack of room would end the process
            self._memory = mmap.mmap(descriptor, size)
        except OSError as error:
            path.unlink()
            raise no_room(path, size, error) from error
        finally:
            os.close(descriptor)
        self._memory[: len(header)] = header
        self.tensors = dict(self._views(len(header)))

    def _views(self, place: int) -> list[tuple[str, torch.Tensor]]:
        whole = torch.frombuffer(self._memory, dtype=torch.uint8)
        views = []
        for one in self.contents:
            raw = whole[place : place + one.num_bytes]
            views.append((one.name, raw.view(getattr(torch, one.dtype)).view(one.shape)))
            place += one.num_bytes
        return views

    def set_key(self, key: str) -> None:
        """Write the key that a reader asks for ("": the tensors are being written)."""
        raw = key.encode().ljust(KEY_CHARS)
        self._memory[self._key_at : self._key_at + KEY_CHARS] = raw


def _header(contents: Sequence[Described]) -> tuple[bytes, int]:
    """Return the file's beginning, and the place of its key."""
    entries: dict[str, object] = {METADATA: {KEY: " " * KEY_CHARS}}
    place = 0
    for one in contents:
        end = place + one.num_bytes
        entries[one.name] = {
            "dtype": WORDS[one.dtype], "shape": one.shape, "data_offsets": (place, end)
        }  # fmt: skip
        place = end
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    beginning = len(text).to_bytes(LENGTH_BYTES, "little") + text
    return beginning, beginning.index(b" " * KEY_CHARS)


def in_order(contents: Sequence[Described]) -> list[Described]:
    """Return tensors with the widest types first, so that all are aligned."""
    return sorted(contents, key=lambda one: -item_bytes(one.dtype))


def key_of(path: Path) -> str:
    """Return a file's key ("": none, or its tensors are being written). Raises: ConfigError"""
    return read_metadata(path).get(KEY, "").strip()


def no_room(path: Path, size: int, error: OSError) -> RequestError:
    """Return the error for a file that cannot be made."""
    return RequestError(
        f"{path} cannot have {size >> 20} MiB: {error.strerror}.",
        fix="make the folder larger (for /dev/shm of a container: its --shm-size).",
        status=507,
    )


def verify_key(files: Sequence[Path], key: str) -> None:
    """Raise ConfigError unless all files have the key ("": none is asked for)."""
    for file in files if key else ():
        if key_of(file) != key:
            raise ConfigError(
                "it has no weights with this key: none were written, or others have been since.",
                where=str(file),
                fix="write the weights and send their key once they are written.",
            )

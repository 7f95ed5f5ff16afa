"""SharedWeights: a trainer's weights in shared memory, where engines of the same machine read them.

The memory is allocated once and written in place. Engines copy from it, so it may be written again
as soon as the server has answered; an engine that has to start again needs it as it was.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable
from pathlib import Path

import torch

from dovetail.errors import RequestError
from dovetail_plugins.weight_transfer.memory_file import MemoryFile, described, in_order
from dovetail_plugins.weight_transfer.sent_folder import MEMORY

NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,127}")


def place_of(name: str) -> Path:
    """Return the file of a name in shared memory. Raises: RequestError for a bad name"""
    if not NAME.fullmatch(name):
        fix = "use letters, digits, - and _."
        raise RequestError(f'"{name}" is not a name.', where="shared_memory", fix=fix)
    return MEMORY / name


class SharedWeights:
    """Weights under a name in shared memory. Leave the with block to remove them."""

    def __init__(self, name: str = "") -> None:
        self.name = name or f"dovetail-weights-{secrets.token_hex(8)}"
        self._place = place_of(self.name)
        self._file: MemoryFile | None = None

    @property
    def path(self) -> str:
        """Return the path of the memory's file, for `collective_rpc("update_weights")`."""
        return str(self._place)

    @torch.no_grad()
    def write(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> str:
        """Write all tensors, such as `model.named_parameters()`; return the key under which they
        are there until the next call. Raises: RequestError if there is no room. Mutates: self"""
        whole = dict(tensors)
        contents = in_order([described(name, tensor) for name, tensor in whole.items()])
        if self._file is None or self._file.contents != tuple(contents):
            self.close()
            self._place.unlink(missing_ok=True)  # of a trainer that was killed
            self._file = MemoryFile(self._place, contents)
        self._file.set_key("")
        for name, tensor in whole.items():
            self._file.tensors[name].copy_(tensor)
        key = secrets.token_hex(16)
        self._file.set_key(key)
        return key

    def close(self) -> None:
        """Remove the memory's name. May be called twice. Mutates: self"""
        if self._file is not None:
            self._place.unlink(missing_ok=True)
            self._file = None

    def __enter__(self) -> SharedWeights:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

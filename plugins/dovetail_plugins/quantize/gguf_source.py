"""GgufSource: a GGUF file of plain floats, under the file's own names. Its experts are matrices of
their own: "blk.0.ffn_up_exps.3.weight"."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch

from dovetail.errors import ConfigError
from dovetail_plugins.gguf.blocks.types import FLOAT_DTYPES
from dovetail_plugins.gguf.reading.file import read_model
from dovetail_plugins.gguf.reading.tensors import tensors_of
from dovetail_plugins.gguf.writing.sources import is_stack
from dovetail_plugins.quantize.source import CheckpointSource


class GgufSource(CheckpointSource):
    """The tensors of a file. Raises: ConfigError for one whose matrices are quantized"""

    def __init__(self, file: Path) -> None:
        model = read_model(file)
        for one in model.extents:
            if one.type.name not in FLOAT_DTYPES and len(one.shape) > 1:
                raise ConfigError(
                    f"{one.name} is quantized already ({one.type.name}).",
                    where=str(file),
                    fix="name the file in F32, F16 or BF16 that it was made from.",
                )
        self._model = replace(model, settings={})  # names without an architecture stay
        self.shapes = {name: tuple(tensor.shape) for name, tensor in self.tensors()}

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield every tensor once, in the order of the file."""
        for name, tensor in tensors_of(self._model):
            if not is_stack(name, tuple(tensor.shape)):
                yield name, tensor
                continue
            stem, _, leaf = name.rpartition(".")
            for number, expert in enumerate(tensor):
                yield f"{stem}.{number}.{leaf}", expert

    def turned(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensor: GGUF has one order for all families."""
        return tensor

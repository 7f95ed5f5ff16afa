"""A projector's tensors under the names, and in the shapes, of the checkpoint it was made of."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence

import torch

from dovetail.errors import ConfigError
from dovetail_plugins.gguf.blocks.integers import dequantize
from dovetail_plugins.gguf.blocks.types import QUANTIZED
from dovetail_plugins.gguf.projectors.projector import Pair, Projector
from dovetail_plugins.gguf.projectors.targets import Target, targets_of
from dovetail_plugins.gguf.reading.file import TensorExtent
from dovetail_plugins.gguf.reading.tensors import DTYPES


def tensors_of(pair: Pair, projectors: Sequence[Projector]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the projector's tensors; quantized ones become float32. Raises: ConfigError"""
    paths = {extent.path for extent in pair.clip.model.extents}
    mapped = {}
    for path in paths:
        with path.open("rb") as file:
            mapped[path] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    targets = targets_of(pair, projectors)
    for name, target in targets.items():
        parts = [_read(mapped[one.path], one) for one in target.extents]
        yield name, _whole(parts, target, pair)
    for module in (name for one in projectors for name in one.names(pair).unused):
        if f"{module}.weight" not in targets:
            size = pair.number("embedding_length")
            yield f"{module}.weight", torch.ones(size)
            yield f"{module}.bias", torch.zeros(size)


def _whole(parts: list[torch.Tensor], target: Target, pair: Pair) -> torch.Tensor:
    """Return the checkpoint's tensor that parts make."""
    if target.frames:
        return torch.stack(parts, dim=2)
    tensor = parts[0] if len(parts) == 1 else torch.cat(parts)
    if target.third is not None:
        tensor = tensor.chunk(3)[target.third]
    return tensor if target.change is None else target.change(tensor, pair)


def _read(mapped: mmap.mmap, extent: TensorExtent) -> torch.Tensor:
    """Return a tensor in the mapped file as numbers."""
    if extent.start + extent.num_bytes > len(mapped):
        raise ConfigError("the file became shorter while it was read.", where=str(extent.path))
    raw = torch.frombuffer(mapped, dtype=torch.uint8, offset=extent.start, count=extent.num_bytes)
    if extent.type.name not in QUANTIZED:
        return raw.view(DTYPES[extent.type.name]).view(extent.shape)
    row_bytes = extent.shape[-1] // extent.type.values * extent.type.block_bytes
    return dequantize(extent.type.name, raw.view(*extent.shape[:-1], row_bytes))

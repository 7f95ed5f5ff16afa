"""Dummy: made-up weights of the right shapes, for measuring and for tests. Reads no file.

A tensor depends only on the seed and its name. Values are small; norm weights are around one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dovetail.errors import ConfigError
from dovetail.interfaces.load_format import Checkpoint, LoadFormat
from dovetail.interfaces.plugin import Info

if TYPE_CHECKING:
    import torch


class Dummy(LoadFormat):
    """Random tensors for every wanted name."""

    info = Info(summary="random weights; no file is read")
    capabilities = frozenset({"random_weights", "lazy"})

    def tensors(self, checkpoint: Checkpoint) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield a random tensor for every wanted name."""
        from dovetail_plugins.load_formats._files import ByteCount
        from dovetail_plugins.load_formats._invented import invent

        if checkpoint.shapes is None:
            raise ConfigError(
                "random weights need the model's shapes, which are not known here.",
                where=checkpoint.path,
            )
        count = ByteCount(checkpoint.progress, len(checkpoint.shapes))
        for name, (shape, dtype) in checkpoint.shapes.items():
            yield name, invent(name, shape, dtype, checkpoint.seed)
            count.add(1)

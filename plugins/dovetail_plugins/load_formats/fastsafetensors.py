"""Fastsafetensors: safetensors files copied whole by the threads of the fastsafetensors package.

One file at a time, so that no more than one is in memory at once. Headers are checked here before
the package sees a file. On a CPU it reads through a buffer; GPU storage is not used.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dovetail.interfaces.data.headers import TensorHeader
from dovetail.interfaces.load_format import Checkpoint, LoadFormat
from dovetail.interfaces.plugin import Info
from dovetail_plugins.load_formats._files import check_nonempty, weight_files
from dovetail_plugins.load_formats.safetensors import INDEX, PATTERNS, Safetensors

if TYPE_CHECKING:
    import torch


class Fastsafetensors(LoadFormat):
    """All tensors of the folder's safetensors files, through the package."""

    info = Info(
        summary="safetensors files copied whole by several threads",
        source="https://github.com/foundation-model-stack/fastsafetensors",
        requires=("fastsafetensors",),
        extra="load-formats",
    )

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Return why the folder is not of this format. `query` is a Checkpoint or None."""
        return Safetensors.why_not(query)

    def tensors(self, checkpoint: Checkpoint) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield every tensor once, file by file."""
        from dovetail_plugins.load_formats._fast_copy import copied_tensors
        from dovetail_plugins.load_formats._shards import read_shards

        files = weight_files(checkpoint, index=INDEX, patterns=PATTERNS)
        check_nonempty(checkpoint, files, "*.safetensors file")
        return read_shards(files, checkpoint, copied_tensors)

    def headers(self, checkpoint: Checkpoint) -> Iterator[TensorHeader]:
        """Return all headers, as the format safetensors does."""
        return Safetensors(Safetensors.Options()).headers(checkpoint)

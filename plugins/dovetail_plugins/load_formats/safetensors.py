"""Safetensors: *.safetensors files, single or sharded. They cannot contain code.

Format: see _safetensors_header. Checking whether it fits imports no torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dovetail.interfaces.data.headers import TensorHeader
from dovetail.interfaces.data.spec import RankSpec
from dovetail.interfaces.load_format import Checkpoint, LoadFormat
from dovetail.interfaces.plugin import Info
from dovetail_plugins.load_formats._files import check_nonempty, weight_files, why_no_folder

if TYPE_CHECKING:
    import torch

INDEX = "model.safetensors.index.json"
PATTERNS = ("model*.safetensors", "*.safetensors")
READINGS = ("lazy", "eager")


@dataclass(frozen=True, slots=True, kw_only=True)
class SafetensorsOptions:
    """How the files are read."""

    reading: str = field(
        default="lazy",
        metadata={
            "choices": READINGS,
            "help": "lazy maps the files, eager reads each file whole (slow disks)",
        },
    )


class Safetensors(LoadFormat):
    """All tensors of the folder's safetensors files."""

    info = Info(
        summary="safetensors files, single or sharded",
        source="https://github.com/huggingface/safetensors",
        requires=("safetensors",),
    )
    capabilities = frozenset({"lazy", "writes"})
    Options = SafetensorsOptions

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Return why the folder is not of this format. `query` is a Checkpoint or None."""
        if query is None:
            return []
        absent = why_no_folder(query)
        if absent:
            return [absent]
        files = weight_files(query, index=INDEX, patterns=PATTERNS)
        return [] if files else ["the folder holds no *.safetensors file"]

    def tensors(self, checkpoint: Checkpoint) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield every tensor once, file by file. All headers are checked before the first."""
        from dovetail_plugins.load_formats._shards import READERS, read_shards

        files = weight_files(checkpoint, index=INDEX, patterns=PATTERNS)
        check_nonempty(checkpoint, files, "*.safetensors file")
        return read_shards(files, checkpoint, READERS[self.options.reading])

    def headers(self, checkpoint: Checkpoint) -> Iterator[TensorHeader]:
        """Return all files' headers. Raises: ConfigError as `tensors` does."""
        from dovetail_plugins.load_formats._safetensors_header import read_headers

        files = weight_files(checkpoint, index=INDEX, patterns=PATTERNS)
        check_nonempty(checkpoint, files, "*.safetensors file")
        return read_headers(files)

    @classmethod
    def write(
        cls, folder: str, tensors: Iterable[tuple[str, torch.Tensor]], *, rank: RankSpec
    ) -> int:
        """Write shards and their index, or one file; return the bytes. Raises: ConfigError."""
        from dovetail_plugins.load_formats._safetensors_write import write_indexed

        return write_indexed(Path(folder), tensors, INDEX)

"""Safetensors: *.safetensors files, single or sharded. Nothing in them can run.

Format: see _safetensors_file. Asking whether it fits imports no torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dovetail.errors import ConfigError
from dovetail.interfaces.load_format import Checkpoint, LoadFormat
from dovetail.interfaces.plugin import Info
from dovetail_plugins.load_formats._files import (
    ByteCount,
    check_nonempty,
    weight_files,
    why_no_folder,
)

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
        metadata={"help": "lazy maps the files, eager reads each file whole (slow disks)"},
    )

    def __post_init__(self) -> None:
        if self.reading not in READINGS:
            raise ConfigError(
                f'"{self.reading}" is no way to read safetensors',
                where="load_format.reading",
                fix=f"use one of {', '.join(READINGS)}",
            )


class Safetensors(LoadFormat):
    """All tensors of the folder's safetensors files."""

    info = Info(
        summary="safetensors files, single or sharded",
        source="https://github.com/huggingface/safetensors",
        requires=("safetensors",),
    )
    capabilities = frozenset({"lazy"})
    Options = SafetensorsOptions

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Return why the folder is not of this format. `query` is a Checkpoint or None."""
        if query is None:
            return []
        absent = why_no_folder(query)
        if absent:
            return [absent]
        found = weight_files(query, index=INDEX, patterns=PATTERNS)
        return [] if found else ["the folder holds no *.safetensors file"]

    def tensors(self, checkpoint: Checkpoint) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield every tensor once, file by file. All headers are checked before the first."""
        from dovetail_plugins.load_formats import _safetensors_file as single

        files = weight_files(checkpoint, index=INDEX, patterns=PATTERNS)
        check_nonempty(checkpoint, files, "*.safetensors file")
        headers = [single.read_header(path) for path in files]
        _check_distinct(headers)
        read = single.eager_tensors if self.options.reading == "eager" else single.lazy_tensors
        count = ByteCount(checkpoint.progress, sum(h.data_bytes for h in headers))
        for header in headers:
            for name, tensor in read(header):
                yield name, tensor
                count.add(tensor.nbytes)


def _check_distinct(headers: list[Any]) -> None:
    """Raises: ConfigError when two files hold the same tensor."""
    owners: dict[str, str] = {}
    for header in headers:
        for extent in header.extents:
            other = owners.setdefault(extent.name, header.path.name)
            if other != header.path.name:
                raise ConfigError(
                    f'tensor "{extent.name}" is also in {other}',
                    where=str(header.path),
                    fix="remove one of the files, or name it in --ignore-patterns",
                )

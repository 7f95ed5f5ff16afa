"""Pt: torch.save files (pytorch_model.bin and shards), read with weights_only so no code runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dovetail.interfaces.load_format import Checkpoint, LoadFormat
from dovetail.interfaces.plugin import Info
from dovetail_plugins.load_formats._files import (
    ByteCount,
    check_is_content,
    check_nonempty,
    weight_files,
    why_no_folder,
)

if TYPE_CHECKING:
    from pathlib import Path

    import torch

INDEX = "pytorch_model.bin.index.json"
PATTERNS = ("pytorch_model*.bin", "*.bin", "*.pt", "*.pth")
NO_WEIGHTS = ("training_args.bin", "optimizer*", "scheduler*", "rng_state*", "scaler*")


ONTO_CPU: Mapping[str, str] = {"*": "cpu"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PtOptions:
    """The devices that tensors are read to."""

    map_location: Mapping[str, str] = field(
        default_factory=lambda: dict(ONTO_CPU),
        metadata={
            "help": "device in the file -> device to read onto, * for all others; as in "
            "torch.load, what is not named stays where the file says"
        },
    )


class Pt(LoadFormat):
    """All tensors of the folder's torch.save files."""

    info = Info(
        summary="torch.save files (.bin, .pt, .pth), tensors only",
        source="https://docs.pytorch.org/docs/stable/notes/serialization.html",
    )
    Options = PtOptions

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Return why the folder is not of this format. `query` is a Checkpoint or None."""
        if query is None:
            return []
        absent = why_no_folder(query)
        if absent:
            return [absent]
        return [] if pt_files(query) else ["the folder holds no *.bin, *.pt or *.pth file"]

    def tensors(self, checkpoint: Checkpoint) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield every tensor once, file by file."""
        from dovetail_plugins.load_formats._pt_file import read_tensors

        files = pt_files(checkpoint)
        check_nonempty(checkpoint, files, "*.bin, *.pt or *.pth file")
        count = ByteCount(checkpoint.progress, sum(check_is_content(p) for p in files))
        for path in files:
            left_bytes = path.stat().st_size
            for name, tensor in read_tensors(path, self.options.map_location).items():
                yield name, tensor
                count.add(min(tensor.nbytes, left_bytes))
                left_bytes -= min(tensor.nbytes, left_bytes)
            count.add(left_bytes)


def pt_files(checkpoint: Checkpoint) -> list[Path]:
    """Return the torch.save files of the folder that hold weights."""
    return weight_files(checkpoint, index=INDEX, patterns=PATTERNS, skipped=NO_WEIGHTS)

"""MemoryFormat: weights without settings, in one safetensors file or a folder of them.

Not chosen by a flag: it reads what replaces the weights of a running model, whose settings it has.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dovetail.config.checkpoint.sources.weights_check import has_config, is_whole_model
from dovetail.interfaces.data.headers import TensorHeader
from dovetail.interfaces.data.selection import Selection
from dovetail.interfaces.load_format import Checkpoint, LoadFormat
from dovetail.interfaces.plugin import Info
from dovetail_plugins.load_formats._files import check_nonempty

if TYPE_CHECKING:
    import torch

SUFFIX = ".safetensors"


def files_alone(path: str) -> list[Path]:
    """Return the files of weights that have no settings; none if a path is a whole model."""
    place = Path(path)
    if place.is_dir():
        return [] if has_config(place) else sorted(place.glob(f"*{SUFFIX}"))
    return [place] if place.is_file() and not is_whole_model(place) else []


def reading(key: str, *, checks_numbers: bool) -> Selection:
    """Return the choice of this format, for files with a key ("": any)."""
    target = f"{__name__}:{MemoryFormat.__name__}"
    options = {"key": key, "checks_numbers": checks_numbers}
    return Selection(kind="load_format", name="memory", target=target, options=options)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryOptions:
    """The key that every file must have ("": any), and whether NaN is refused."""

    key: str = ""
    checks_numbers: bool = True


class MemoryFormat(LoadFormat):
    """Files of weights alone. Their tensors stay mapped while somebody has them."""

    info = Info(summary="weights without settings, for a running model", requires=("safetensors",))
    capabilities = frozenset({"lazy"})
    Options = MemoryOptions

    def tensors(self, checkpoint: Checkpoint) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield every tensor once. Raises: ConfigError, also at the end if the files were written
        meanwhile"""
        from dovetail_plugins.load_formats._safetensors_file import lazy_tensors
        from dovetail_plugins.load_formats._shards import checked_headers, wanted_headers
        from dovetail_plugins.weight_transfer.memory_file import verify_key
        from dovetail_plugins.weight_transfer.numbers import verify_numbers

        files = self._files(checkpoint)
        verify_key(files, self.options.key)
        for header in wanted_headers(checked_headers(files), checkpoint):
            for name, tensor in lazy_tensors(header, lets_go=False):
                if self.options.checks_numbers:
                    verify_numbers(name, tensor, checkpoint.path)
                yield name, tensor
        verify_key(files, self.options.key)

    def headers(self, checkpoint: Checkpoint) -> Iterator[TensorHeader]:
        """Return all files' headers. Raises: ConfigError"""
        from dovetail_plugins.load_formats._safetensors_header import read_headers

        return read_headers(self._files(checkpoint))

    def _files(self, checkpoint: Checkpoint) -> list[Path]:
        files = files_alone(checkpoint.path)
        check_nonempty(checkpoint, files, f"*{SUFFIX} file")
        return files

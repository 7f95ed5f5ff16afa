"""GGUF: a model in one file, or in several that belong together. They cannot contain code.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Checking whether it fits imports
no torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dovetail.interfaces.data.headers import TensorHeader
from dovetail.interfaces.load_format import Checkpoint, LoadFormat
from dovetail.interfaces.plugin import Info
from dovetail_plugins.gguf.reading.file import SUFFIX, GgufModel, find_file, read_model
from dovetail_plugins.load_formats._files import ByteCount, check_nonempty

if TYPE_CHECKING:
    import torch


class Gguf(LoadFormat):
    """All tensors of a GGUF model, under the names of its Hugging Face checkpoint."""

    info = Info(
        summary="GGUF files, single or divided",
        source="https://github.com/ggml-org/ggml/blob/master/docs/gguf.md",
    )
    capabilities = frozenset({"lazy"})

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Return why the path is not of this format. `query` is a Checkpoint or None."""
        if query is None or find_file(query.path, query.ignore_patterns) is not None:
            return []
        return [f"there is no *{SUFFIX} file"]

    def tensors(self, checkpoint: Checkpoint) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield every tensor once. All heads are checked before the first."""
        from dovetail_plugins.gguf.reading.tensors import tensors_of

        model = _model_of(checkpoint)
        count = ByteCount(checkpoint.progress, sum(one.num_bytes for one in model.extents))
        for name, tensor in tensors_of(model):
            yield name, tensor
            count.add(tensor.nbytes)

    def headers(self, checkpoint: Checkpoint) -> Iterator[TensorHeader]:
        """Return the headers of the tensors in the model's files."""
        from dovetail_plugins.gguf.reading.names import headers_of

        return headers_of(_model_of(checkpoint))

    @classmethod
    def write_sample(cls, folder: str, tensors: Mapping[str, torch.Tensor]) -> None:
        """Write a model of an unknown architecture: its names stay."""
        from dovetail_plugins.gguf.writing.write import write_file

        write_file(Path(folder, f"model{SUFFIX}"), {"general.architecture": "sample"}, tensors)


def _model_of(checkpoint: Checkpoint) -> GgufModel:
    """Return the checked heads of the model. Raises: ConfigError"""
    file = find_file(checkpoint.path, checkpoint.ignore_patterns)
    check_nonempty(checkpoint, [] if file is None else [file], f"*{SUFFIX} file")
    assert file is not None
    return read_model(file)

"""GGUF: a model in one file, or in several that belong together. They cannot contain code.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Checking whether it fits imports
no torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dovetail.interfaces.data.headers import TensorHeader
from dovetail.interfaces.load_format import Checkpoint, LoadFormat
from dovetail.interfaces.plugin import Info
from dovetail_plugins.gguf.reading.file import SUFFIX, GgufModel, find_file, forget_head, read_model
from dovetail_plugins.load_formats._files import ByteCount, check_nonempty

if TYPE_CHECKING:
    import torch

    from dovetail_plugins.gguf.projectors.find import Found


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufOptions:
    """Which projector is read with the model."""

    mmproj: str | None = field(
        default=None,
        metadata={"help": 'the projector\'s file; "" for none, null for a fitting one next to it'},
    )


class Gguf(LoadFormat):
    """All tensors of a GGUF model, under the names of its Hugging Face checkpoint."""

    info = Info(
        summary="GGUF files, single or divided",
        source="https://github.com/ggml-org/ggml/blob/master/docs/gguf.md",
    )
    Options = GgufOptions
    capabilities = frozenset({"lazy"})

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Return why the path is not of this format. `query` is a Checkpoint or None."""
        if query is None or find_file(query.path, query.ignore_patterns) is not None:
            return []
        return [f"there is no *{SUFFIX} file"]

    def tensors(self, checkpoint: Checkpoint) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield every tensor once. All heads are checked before the first."""
        from dovetail_plugins.gguf.projectors import tensors
        from dovetail_plugins.gguf.projectors.join import text_of
        from dovetail_plugins.gguf.reading.tensors import tensors_of

        model = _model_of(checkpoint)
        found = self._projector(model)
        model = text_of(model, found)
        extents = (*model.extents, *(found[0].clip.model.extents if found else ()))
        count = ByteCount(checkpoint.progress, sum(one.num_bytes for one in extents))
        for name, tensor in chain(tensors_of(model), tensors.tensors_of(*found) if found else ()):
            yield name, tensor
            count.add(tensor.nbytes)
        forget_head()

    def headers(self, checkpoint: Checkpoint) -> Iterator[TensorHeader]:
        """Return the headers of the tensors in the model's files."""
        from dovetail_plugins.gguf.projectors import targets
        from dovetail_plugins.gguf.reading.names import headers_of

        model = _model_of(checkpoint)
        found = self._projector(model)
        return chain(headers_of(model), targets.headers_of(*found) if found else ())

    def _projector(self, model: GgufModel) -> Found | None:
        """Return a model with the parts of its projector. Raises: ConfigError"""
        from dovetail_plugins.gguf._config import config_of
        from dovetail_plugins.gguf.families import families
        from dovetail_plugins.gguf.projectors.find import projector_of, projectors_beside

        if not (self.options.mmproj or projectors_beside(model.path)):
            return None
        if model.settings.get("general.architecture") not in families():
            return None
        return projector_of(model, config_of(model), self.options.mmproj)

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

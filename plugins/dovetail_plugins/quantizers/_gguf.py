"""Shared by the GGUF quantizers: a model in one file, with llama.cpp's names and settings.

Matrices that the type cannot hold, and everything that is not a matrix, are float32. Imports no
torch. Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.quantizer import Inputs, Quantized, Quantizer, QuantizeTask
from dovetail_plugins.gguf.blocks.types import BY_NAME
from dovetail_plugins.gguf.writing.settings import ARCHITECTURES, settings_of

if TYPE_CHECKING:
    import torch

    from dovetail_plugins.gguf.writing.write import Stored

FILE = "model.gguf"
WIDE_LAYERS = ("embed_tokens", "wte", "lm_head")
"""Layers that every token's text hangs on: never below 8 bits."""
WIDE = "Q8_0"


class GgufQuantizer(Quantizer):
    """One type for all matrices; a subclass names it."""

    type_name: ClassVar[str]
    file_type: ClassVar[int]
    """The general.file_type of files that are mostly of this type."""
    capabilities = frozenset({"tables", "writes"})

    def __init__(self, options: Any, task: QuantizeTask) -> None:
        super().__init__(options, task)
        self._settings = settings_of(task.model)

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Return why a model cannot be written. `query` is a ModelSpec or None."""
        if not isinstance(query, ModelSpec) or query.architecture in ARCHITECTURES:
            return []
        return [f"{query.architecture} is not written as GGUF; {', '.join(ARCHITECTURES)} are"]

    def why_whole(self, name: str, shape: tuple[int, int]) -> str:
        """Return why a matrix stays: rows must be whole blocks."""
        size = BY_NAME[self._type_of(name)].values
        return f"its inputs are not a multiple of {size}" if shape[1] % size else ""

    def _type_of(self, name: str) -> str:
        return WIDE if name.rpartition(".")[2] in WIDE_LAYERS else self.type_name

    def quantize(self, name: str, weight: torch.Tensor, inputs: Inputs | None) -> Quantized:
        """Return the matrix in blocks, under the name of their type. Shapes: weight [O, I]"""
        from dovetail_plugins.gguf.blocks.integers import dequantize
        from dovetail_plugins.gguf.blocks.quantize import QUANTIZERS

        kind = self._type_of(name)
        blocks = QUANTIZERS[kind](weight)
        return Quantized(tensors={kind: blocks}, meant=dequantize(kind, blocks).float())

    def write(self, folder: str, tensors: Iterable[tuple[str, torch.Tensor]]) -> int:
        """Write the file; return its bytes. Raises: ConfigError"""
        from dovetail_plugins.gguf.vocabulary.write import tokenizer_settings
        from dovetail_plugins.gguf.writing.write import write_stream

        model = self.task.model
        settings = {
            **self._settings,
            "general.name": Path(model.path).name,
            "general.file_type": self.file_type,
            "general.quantization_version": 2,
            **tokenizer_settings(Path(model.path), model.vocab_size),
        }
        return write_stream(Path(folder, FILE), settings, self._stored(tensors))

    def _stored(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> Iterator[Stored]:
        import torch

        from dovetail_plugins.gguf.writing.renamed import renamed
        from dovetail_plugins.gguf.writing.settings import rope_tensors
        from dovetail_plugins.gguf.writing.write import Stored

        yield from renamed(self.task.model, str(self._settings["general.architecture"]), tensors)
        for name, divisors in rope_tensors(self.task.model).items():
            yield Stored(name=name, tensor=torch.tensor(divisors))

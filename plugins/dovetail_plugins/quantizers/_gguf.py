"""Shared by the GGUF quantizers: a model in one file, with llama.cpp's names and settings.

Matrices that a type cannot hold get the type that llama.cpp uses then; what is not a matrix is
float32. Imports no torch. Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from dovetail.errors import ConfigError, listed
from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.quantizer import Block, Inputs, Quantized, Quantizer, QuantizeTask
from dovetail_plugins.gguf.writing.mixtures import MIXTURES, fitting, is_quantized, mixture_of
from dovetail_plugins.gguf.writing.sources import source_of, why_not_written

if TYPE_CHECKING:
    import torch

    from dovetail_plugins.gguf.writing.importances import Collected, Importances
    from dovetail_plugins.gguf.writing.write import Setting, Stored

FILE = "model.gguf"
WEIGHT = ".weight"
IMATRIX = "quantize.imatrix."
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufOptions:
    """Where importances come from, and where those of a calibration text go."""

    imatrix: str | None = field(
        default=None, metadata={"help": "llama.cpp's importance matrix, a GGUF file, to be used"}
    )
    save_imatrix: str | None = field(
        default=None, metadata={"help": "importance matrix to write, from the calibration text"}
    )


class GgufQuantizer(Quantizer):
    """A mixture of types; a subclass names it."""

    mixture: ClassVar[str]
    capabilities = frozenset({"tables", "writes", "squares"})
    Options = GgufOptions

    def __init__(self, options: Any, task: QuantizeTask) -> None:
        super().__init__(options, task)
        self._source = source_of(task.model)
        self._importances = self._read_importances()
        self._has_importances = self._importances is not None
        self._collected: Collected | None = None
        self._replaced: dict[tuple[str, str], list[str]] = {}

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Return why a model cannot be written. `query` is a ModelSpec or None."""
        return why_not_written(query) if isinstance(query, ModelSpec) else []

    def _read_importances(self) -> Importances | None:
        if not self.options.imatrix:
            return None
        from dovetail_plugins.gguf.writing.importances import Importances

        return Importances(Path(self.options.imatrix))

    def why_whole(self, name: str, shape: tuple[int, int]) -> str:
        """Return why a matrix stays: llama.cpp keeps small ones whole."""
        stem, _ = self._source.name_of(name)
        return "" if is_quantized(f"{stem}{WEIGHT}", len(shape)) else "small matrices stay"

    def quantize(self, name: str, weight: torch.Tensor, inputs: Inputs | None) -> Quantized:
        """Return the matrix in blocks, under the name of their type. Shapes: weight [O, I]

        Raises: ConfigError for weights that the type cannot hold, or unfit importances
        """
        from dovetail_plugins.gguf.blocks.integers import dequantize
        from dovetail_plugins.gguf.blocks.quantize import to_blocks
        from dovetail_plugins.gguf.blocks.types import QUANTIZED

        stem, number = self._source.name_of(name)
        squares = self._squares(stem, number, inputs, weight.shape[1])
        kind = self._type_of(name, stem, weight.shape[1])
        blocks = to_blocks(kind, weight, squares)
        floats = dequantize(kind, blocks) if kind in QUANTIZED else blocks
        if not bool(floats.isfinite().all()):
            raise ConfigError(
                f"its largest value is {float(weight.abs().max()):.3g}, which {kind} cannot hold.",
                where=f"{name}{WEIGHT}",
                fix="use --method gguf-bf16.",
            )
        return Quantized(tensors={kind: blocks}, meant=floats.float())

    def _squares(
        self, stem: str, number: int | None, inputs: Inputs | None, size: int
    ) -> torch.Tensor | None:
        """Return the mean squares of a matrix's inputs, if they are known. Shapes: -> [size]"""
        if inputs is not None:
            squares = inputs.gram if inputs.gram.dim() == 1 else inputs.gram.diagonal()
            self._collect(stem, number, squares, inputs.num_tokens)
            return squares
        return None if self._importances is None else self._importances.of(stem, number, size)

    def _collect(
        self, stem: str, number: int | None, squares: torch.Tensor, num_tokens: int
    ) -> None:
        """Remember importances that are to be written. Shapes: squares [I]. Mutates: self"""
        from dovetail_plugins.gguf.writing.importances import Collected

        if self.options.save_imatrix:
            self._collected = self._collected or Collected()
            self._collected.add(stem, number, squares, num_tokens)

    def smooth(self, block: Block) -> None:
        """Note that there is a calibration text; the block stays as it is."""
        self._has_importances = True

    def _type_of(self, name: str, stem: str, row: int) -> str:
        """Return the type of a matrix whose rows are of this length. It is one for all experts of a
        layer, also if the text reached only some of them."""
        facts = replace(self._source.facts, has_importances=self._has_importances)
        wanted = mixture_of(self.mixture, facts.architecture).type_of(stem, facts)
        kind = fitting(wanted, row)
        if kind != wanted:
            self._replaced.setdefault((wanted, kind), []).append(name)
        return kind

    def write(self, folder: str, tensors: Iterable[tuple[str, torch.Tensor]]) -> int:
        """Write the file; return its bytes. Raises: ConfigError"""
        from dovetail_plugins.gguf.writing.write import write_stream

        settings: dict[str, Setting] = {
            **self._source.settings(),
            "general.file_type": MIXTURES[self.mixture].file_type,
            "general.quantization_version": 2,
        }
        stored = self._noting(settings, self._source.stored(tensors))
        num_bytes = write_stream(Path(folder, FILE), settings, stored)
        self._finish()
        return num_bytes

    def _noting(self, settings: dict[str, Setting], stored: Iterable[Stored]) -> Iterator[Stored]:
        """Yield the tensors, then note where importances came from, if there were any, as
        llama.cpp does. Mutates: settings"""
        yield from stored
        if self.options.imatrix:
            settings[f"{IMATRIX}file"] = Path(self.options.imatrix).name
        elif self._has_importances:
            settings[f"{IMATRIX}dataset"] = "dovetail quantize --calibration"

    def _finish(self) -> None:
        """Write the collected importances; log what is otherwise than wanted."""
        if self._importances is not None:
            self._importances.check_used()
        if self._collected is not None:
            self._collected.write(Path(self.options.save_imatrix))
        for (wanted, kind), names in self._replaced.items():
            text = "%s: %s instead of %s, because of the length of their rows."
            log.warning(text, listed(names, 1), kind, wanted)

"""Quantizer: converts full-precision matrices to a checkpoint in one quantized layout.

The command passes one matrix after another, with statistics of its inputs if there is a calibration
text, and writes the results. Shape letters: I input features, O output features.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.plugin import Plugin

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizeTask:
    """The task of a quantizer: the model, and how many inputs share a scale (`group`, used only by
    "grouped" quantizers)."""

    model: ModelSpec
    group: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """A layer's inputs x on the calibration text: the mean of x x^T and of |x| over the tokens that
    reached it. An expert's tokens are those that its router sends to it.

    Shapes: gram [I, I], or [I], its diagonal, for quantizers of "squares"; magnitude [I]; float32
    """

    gram: torch.Tensor
    magnitude: torch.Tensor
    num_tokens: int

    def scaled(self, factors: torch.Tensor) -> Inputs:
        """Return these inputs, each multiplied by its factor. Shapes: factors [I], positive"""
        return replace(
            self,
            gram=self.gram * factors * factors.unsqueeze(1),
            magnitude=self.magnitude * factors,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One block of a model (attention and feed-forward) before its matrices are quantized.

    `tensors` are all its parameters in float32, matrices [O, I], by the names that transformers
    uses within the block; experts are "N.gate_proj", "N.up_proj", "N.down_proj", whatever the
    checkpoint calls them. `inputs` are the inputs of its matrices, by the same names without
    ".weight"; layers that too few tokens reached have none. Both may be changed together, if the
    block's output stays the same.
    """

    name: str
    tensors: dict[str, torch.Tensor]
    inputs: dict[str, Inputs]


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantized:
    """A matrix as the checkpoint stores it: `tensors` by their suffix after the layer's name, and
    the matrix [O, I] that they represent."""

    tensors: Mapping[str, torch.Tensor]
    meant: torch.Tensor


class Quantizer(Plugin):
    """One layout and one way to quantize to it. `why_not(ModelSpec)` says what cannot be quantized.

    The results are written as safetensors, with `settings` in config.json and all other files of
    the checkpoint unchanged, unless the quantizer "writes".
    """

    interface_version: ClassVar[int] = 1
    known_capabilities: ClassVar[Mapping[str, str]] = {
        "calibrated": "needs a calibration text to measure the inputs of layers",
        "grouped": "groups of inputs share a scale; --group sets their size",
        "squares": "uses only the mean squares of inputs, not of products of two",
        "tables": "quantizes the embedding and the head as well",
        "writes": "has `write`: writes other files than safetensors, including the configuration",
    }

    def __init__(self, options: Any, task: QuantizeTask) -> None:
        self.options = options
        self.task = task

    def why_whole(self, name: str, shape: tuple[int, int]) -> str:
        """Return why the layout cannot hold a matrix [O, I]; empty when it can."""
        return ""

    def smooth(self, block: Block) -> None:
        """Adjust a block to reduce its rounding errors. Only with a text. Mutates: block"""

    @abstractmethod
    def quantize(self, name: str, weight: torch.Tensor, inputs: Inputs | None) -> Quantized:
        """Return a layer's matrix quantized. `inputs` is None without a text, or if too few of its
        tokens reached the layer. Shapes: weight [O, I] float32"""

    def settings(self, whole: Sequence[str]) -> Mapping[str, Any]:
        """Return config.json's quantization_config; `whole` are the layers that stay unquantized.

        Quantizers that "write" do not use it.
        """
        return {}

    def write(self, folder: str, tensors: Iterable[tuple[str, torch.Tensor]]) -> int:
        """Write the checkpoint into `folder`; return its bytes. Only for quantizers that "write".

        The tensors are quantized while they are iterated, each once.
        Raises: ConfigError when the folder cannot be written.
        """
        raise NotImplementedError

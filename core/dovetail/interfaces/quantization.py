"""Quantization: how a linear layer's weight is stored and multiplied.

A QuantMethod reads the checkpoint's own quantization config and gives each linear layer a
LinearMethod, which creates the parameters, finishes them after loading, and multiplies.
Shape letters: I input features, O output features of this rank.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from dovetail.interfaces.plugin import Plugin
from dovetail.interfaces.spec import ModelSpec

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearSpec:
    """One linear layer as this rank sees it.

    `name` is its dotted path in the checkpoint's naming; `out_sizes` the parts fused along the
    output (q, k, v or gate, up), already divided by the ranks. `is_input_split` says that the
    input features are divided over ranks (row-parallel).
    """

    name: str
    in_size: int
    out_sizes: tuple[int, ...]
    dtype: str
    device: str
    is_input_split: bool = False

    @property
    def out_size(self) -> int:
        """Return O."""
        return sum(self.out_sizes)


class LinearMethod(ABC):
    """Weights of one linear layer. Stateless: all tensors are parameters of the layer."""

    @abstractmethod
    def create(self, layer: torch.nn.Module, spec: LinearSpec) -> None:
        """Register empty parameters on the layer, each with the attributes that
        `layers.weights` needs to fill it: `output_axis`, `input_axis` (None: not divided).
        Mutates: layer"""

    def finish(self, layer: torch.nn.Module) -> None:
        """Repack the parameters once all are loaded. Mutates: layer"""

    @abstractmethod
    def apply(
        self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        """Return x W^T + bias. Shapes: x [T, I], bias [O] -> [T, O]"""


class QuantMethod(Plugin):
    """A way weights are stored. `why_not(ModelSpec)` says which checkpoints it cannot read."""

    interface_version: ClassVar[int] = 1
    known_capabilities: ClassVar[Mapping[str, str]] = {
        "from_checkpoint": "reads weights that a checkpoint stores quantized",
        "while_loading": "quantizes a full-precision checkpoint while it loads",
    }

    @abstractmethod
    def __init__(self, options: Any, model: ModelSpec) -> None:
        """Read the checkpoint's quantization config. Raises: ConfigError when it is malformed."""

    @abstractmethod
    def linear(self, spec: LinearSpec) -> LinearMethod:
        """Return the method for one linear layer (an unquantized one for layers left alone)."""

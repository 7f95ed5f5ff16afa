"""Headers: weight file metadata that is read before any tensor, and the resulting layer sizes.

Load formats return headers; quantization methods say in which form a layer stays in memory. Plain
data; imports no torch. Shape letters: O outputs, I inputs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorHeader:
    """One tensor of a checkpoint, under the name that a load format yields it by.

    `dtype` is torch's name ("bfloat16") or, for blocks without a torch type, the format's own
    ("Q4_K"). `shape` counts numbers, not bytes. `file` is the name of the file that contains it.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    num_bytes: int
    file: str

    @property
    def num_values(self) -> int:
        """Return how many numbers it holds."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredLayer:
    """The tensors of one layer of a checkpoint by their last word ("weight", "qweight", ...)."""

    name: str
    tensors: Mapping[str, TensorHeader]

    @property
    def num_bytes(self) -> int:
        """Return the bytes that it takes in the files."""
        return sum(header.num_bytes for header in self.tensors.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageEstimate:
    """The memory that a layer's matrix takes: `num_values` weights in `num_bytes` altogether.

    `format` is for display ("int4, groups of 128"). `outputs` are its rows, including the padding
    of packed matrices; 0 if the headers do not say. `shared_bytes` of the bytes are allocated once
    for matrices that are fused (q, k and v; gate and up), such as a codebook. `takes` is how
    products may round the layer's activations, one of `layers.rounding.TAKES`; "" if a method does
    not say.
    """

    num_values: int
    format: str
    num_bytes: int
    outputs: int = 0
    shared_bytes: int = 0
    takes: str = ""

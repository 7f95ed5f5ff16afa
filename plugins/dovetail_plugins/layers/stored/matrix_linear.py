"""The linear methods that several quantization methods share.

TorchLinear: a weight in the compute dtype, multiplied by torch. MatrixLinear: tensors that are
filled as the checkpoint stores them and become one matrix, packed for the native library;
ConvertedLinear for one weight that is converted (or not), StoredLinear (its own file) for layers
that are stored quantized.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import nn

from dovetail.interfaces.quantization import (
    Gate,
    LinearMethod,
    LinearSpec,
    NamedActivation,
    StoredTensor,
    weight_tensor,
)
from dovetail.layers.dtypes import dtype_of
from dovetail.layers.linear.borrowing import may_borrow
from dovetail.layers.linear.placement import is_optional, register_stored
from dovetail.layers.opaque import CompilerBoundary
from dovetail.layers.residual import adds_in_place
from dovetail_kernels.cpu.blocks import LARGE_PAGE_BYTES, large_empty
from dovetail_kernels.cpu.library import Library, library
from dovetail_kernels.gemm.matrix import Matrix, runs_natively, stored_format
from dovetail_kernels.gemm.native import Packed
from dovetail_kernels.gemm.native_pack import takes_rows
from dovetail_kernels.gemm.weight import Weight
from dovetail_plugins.layers.stored.products import multiplied
from dovetail_plugins.layers.stored.rounding import AUTO, BFLOAT16
from dovetail_plugins.packed_weights.loading import restored_or_made

Convert = Callable[[torch.Tensor], Weight]
"""Converts a loaded weight [O, I] for multiplication."""


def plain_linear(spec: LinearSpec, *, activations: str = AUTO) -> LinearMethod:
    """Return the method of a layer that is not quantized: packed if the native library runs it."""
    if not runs_natively(spec.device, dtype_of(spec.dtype)):
        return TorchLinear()
    return ConvertedLinear(as_stored, activations=activations)


def as_stored(values: torch.Tensor) -> Weight:
    """Return a full-precision weight unchanged."""
    return Weight(format=stored_format(values), values=values)


class TorchLinear(LinearMethod):
    """One weight [O, I] in the compute dtype."""

    looks_up = True

    def create(self, layer: nn.Module, spec: LinearSpec) -> None:
        """Register an empty `weight`. Mutates: layer"""
        register_stored(layer, self.stored(spec), spec)

    def apply(self, layer: nn.Module, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """Return x W^T + bias. Shapes: x [T, I], bias [O] -> [T, O]"""
        return F.linear(x, layer.get_parameter("weight"), bias)

    def apply_add(
        self,
        layer: nn.Module,
        x: torch.Tensor,
        bias: torch.Tensor | None,
        residual: torch.Tensor,
    ) -> torch.Tensor:
        """Return residual + x W^T + bias. Shapes: x [T, I], residual [T, O] -> [T, O]

        Mutates: residual, if the product is written over it (layers/residual.py)
        """
        if bias is not None or x.dtype != residual.dtype or not adds_in_place(residual):
            return residual + self.apply(layer, x, bias)
        return residual.addmm_(x, layer.get_parameter("weight").t())

    def rows(self, layer: nn.Module, index: torch.Tensor) -> torch.Tensor:
        """Return rows of W. Shapes: index [T] int64 -> [T, I]"""
        return F.embedding(index, layer.get_parameter("weight"))


class MatrixLinear(LinearMethod):
    """A layer that becomes a Matrix once it is filled; the loaded tensors are dropped then.

    A subclass names the stored tensors (`stored`) and makes their matrix (`packed_of`);
    `activations` is the method's option.
    """

    looks_up = True
    activations = AUTO

    @property
    def layout(self) -> str:
        """Return the matrix's layout; "" before there is one, or if another layer has it."""
        return self._matrix.layout if "_matrix" in vars(self) else ""

    @property
    def name(self) -> str:
        """Return the layer's name."""
        return self._spec.name

    def matrix(self, tensors: Mapping[str, torch.Tensor], spec: LinearSpec) -> Matrix:
        """Return loaded tensors as the matrix that is multiplied, or one from the weight cache."""
        return restored_or_made(spec.name, lambda: self.packed_of(tensors, spec))

    @abstractmethod
    def packed_of(self, tensors: Mapping[str, torch.Tensor], spec: LinearSpec) -> Matrix:
        """Return loaded tensors as the matrix that is multiplied."""

    def packed(self, weight: Weight, spec: LinearSpec, *, is_gated: bool) -> Matrix:
        """Return a weight as the layer multiplies it."""
        weight, becomes = multiplied(weight, self.activations, spec)
        return Matrix(
            weight,
            device=spec.device,
            dtype=dtype_of(spec.dtype),
            is_gated=is_gated,
            rounds_activations=becomes == BFLOAT16,
        )

    def create(self, layer: nn.Module, spec: LinearSpec) -> None:
        """Register the empty tensors as the checkpoint stores them. Mutates: layer"""
        self._spec = spec
        register_stored(layer, self.stored(spec), spec)
        native = library()
        if native is None or spec.device != "cpu":
            return
        for parameter in layer.parameters(recurse=False):
            if not parameter.is_meta and not is_optional(parameter):
                _lend_when_filled(parameter, native)
                if runs_natively(spec.device, dtype_of(spec.dtype)):
                    may_borrow(parameter)

    def finish(self, layer: nn.Module) -> None:
        """Make the matrix. Mutates: layer (buffers in place of the checkpoint's tensors)"""
        names = [stored.name for stored in self.stored(self._spec)]
        tensors = {name: layer.get_parameter(name).data for name in names}
        self._matrix = self.matrix(tensors, self._spec)
        self._multiply = CompilerBoundary(self._matrix.multiply)
        self._rows = CompilerBoundary(self._matrix.rows, torch.float32)
        for name in names:
            delattr(layer, name)
        del tensors
        for name, tensor in self._matrix.tensors().items():
            layer.register_buffer(name, tensor, persistent=False)

    def apply(self, layer: nn.Module, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """Return x W^T + bias. Shapes: x [T, I], bias [O] -> [T, O]"""
        return self._multiply(x, bias, size=self._spec.out_size)

    def halves(self, layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        """Return x W^T, of a gated layer both halves. Shapes: x [T, I] -> [T, O]"""
        return self._matrix.halves(x)

    def apply_add(
        self,
        layer: nn.Module,
        x: torch.Tensor,
        bias: torch.Tensor | None,
        residual: torch.Tensor,
    ) -> torch.Tensor:
        """Return residual + x W^T + bias. Shapes: x [T, I], residual [T, O] -> [T, O]"""
        return self._multiply(x, bias, residual, size=self._spec.out_size)

    def apply_activated(
        self,
        layer: nn.Module,
        x: torch.Tensor,
        bias: torch.Tensor | None,
        activation: NamedActivation,
    ) -> torch.Tensor:
        """Return act(x W^T + bias). Shapes: x [T, I] -> [T, O]"""
        if not activation.name:
            return super().apply_activated(layer, x, bias, activation)
        return self._multiply(x, bias, None, size=self._spec.out_size, word=activation.name)

    def apply_gated(
        self, layer: nn.Module, x: torch.Tensor, bias: torch.Tensor | None, gate: Gate
    ) -> torch.Tensor:
        """Return act(gate) * up. Shapes: x [T, I], W [2F, I] -> [T, F]"""
        if not self._spec.is_gated:
            return super().apply_gated(layer, x, bias, gate)
        return self._multiply(x, bias, None, size=self._spec.out_size // 2, word=gate.name)

    def part_rows(self, layer: nn.Module, index: torch.Tensor, first: int) -> torch.Tensor | None:
        """Return rows of W, zeros for rows that it has not. Shapes: index [T] int64 -> [T, I]"""
        found = self._matrix.part_rows(index, first)
        return None if found is None else found.to(dtype_of(self._spec.dtype))

    def rows(self, layer: nn.Module, index: torch.Tensor) -> torch.Tensor:
        """Return rows of W. Shapes: index [T] int64 -> [T, I]"""
        return self._rows(index, size=self._spec.in_size).to(dtype_of(self._spec.dtype))


def _lend_when_filled(parameter: nn.Parameter, native: Library) -> None:
    """Let a large parameter's memory be that of a layer which has been packed, from its first
    placement on: filling new pages takes as long in the system as copying. Mutates: parameter"""
    num_bytes, dtype, shape = parameter.nbytes, parameter.dtype, parameter.shape
    native.prefer_large_pages(parameter.data_ptr(), num_bytes)  # for who fills it as it is
    if num_bytes >= LARGE_PAGE_BYTES:
        vars(parameter)["make_memory"] = lambda: (
            large_empty(num_bytes, native).view(dtype).view(shape)
        )


class ConvertedLinear(MatrixLinear):
    """A full-precision weight, converted and packed."""

    def __init__(self, convert: Convert, *, activations: str = AUTO) -> None:
        self._convert = convert
        self.activations = activations

    def stored(self, spec: LinearSpec) -> tuple[StoredTensor, ...]:
        """Return a `weight` in the type the checkpoint stores."""
        return (weight_tensor(spec, spec.weight_dtype or spec.dtype),)

    @property
    def plain(self) -> Packed | None:
        """Return the packed weight if it can be packed anew of the checkpoint's rows as they are;
        None before there is one, or for another."""
        is_plain = type(self) is ConvertedLinear and self._convert is as_stored and self.layout
        native = self._matrix.native if is_plain else None
        return native if native is not None and takes_rows(native.format) else None

    def packed_of(self, tensors: Mapping[str, torch.Tensor], spec: LinearSpec) -> Matrix:
        """Return a loaded weight, converted and packed."""
        return self.packed(self._convert(tensors["weight"]), spec, is_gated=spec.is_gated)

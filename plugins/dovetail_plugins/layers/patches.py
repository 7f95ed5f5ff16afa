"""Patches: a convolution with stride equal to its kernel size, as one product.

The patches of an image or a video become rows of a matrix. Such a convolution is exactly that
product, and runs like any linear layer.
Source: Dosovitskiy et al., An Image is Worth 16x16 Words, 2020, section 3.1.
"""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd

from dovetail.interfaces.model import BuildContext
from dovetail.layers.dtypes import dtype_of
from dovetail.layers.linear import empty_bias, linear_spec
from dovetail.layers.linear.placement import Placement, WeightHolder, memory_of
from dovetail_plugins.layers.stored.matrix_linear import plain_linear


def is_of_patches(module: nn.Module) -> bool:
    """Return whether a module is a convolution that `Patches` computes."""
    return (
        type(module) in (nn.Conv1d, nn.Conv2d, nn.Conv3d)
        and isinstance(module, _ConvNd)
        and tuple(module.kernel_size) == tuple(module.stride)
        and (module.padding == "valid" or set(module.padding) == {0})
        and set(module.dilation) == {1}
        and module.groups == 1
    )


class Patches(WeightHolder):
    """The convolution of another module, not quantized. Shapes: weight [O, C, *kernel], bias [O]"""

    def __init__(self, context: BuildContext, name: str, convolution: nn.Module) -> None:
        super().__init__()
        assert isinstance(convolution, _ConvNd)
        self.kernel_size: tuple[int, ...] = tuple(convolution.kernel_size)
        self.in_channels, self.out_channels = convolution.in_channels, convolution.out_channels
        self._shape = tuple(convolution.weight.shape)
        size = math.prod(self._shape[1:])
        self.spec = linear_spec(context, name, size, (self.out_channels,))
        self.method = plain_linear(self.spec)
        self.method.create(self, self.spec)
        self.bias = None if convolution.bias is None else empty_bias(self.spec)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the convolution. Shapes: x [N, C, *sizes] -> [N, O, *sizes / kernel]"""
        count, dims = len(x), len(self.kernel_size)
        sizes = [size // k for size, k in zip(x.shape[2:], self.kernel_size, strict=True)]
        cut = x
        for axis in reversed(range(dims)):  # each of them becomes two
            size, k = sizes[axis], self.kernel_size[axis]
            cut = cut.narrow(2 + axis, 0, size * k).unflatten(2 + axis, (size, k))
        places = [2 + 2 * axis for axis in range(dims)]
        inner = [3 + 2 * axis for axis in range(dims)]
        rows = cut.permute(0, *places, 1, *inner).flatten(dims + 1).flatten(0, dims).contiguous()
        out = self.method.apply(self, rows.to(dtype_of(self.spec.dtype)), self.bias)
        return out.unflatten(0, (count, *sizes)).movedim(-1, 1)

    def place(self, leaf: str, part: str | None) -> list[Placement] | None:
        """Return the targets of the convolution's tensors."""
        parameter = self._parameters.get(leaf)
        if parameter is None or part is not None:
            return None
        values = memory_of(parameter)
        target = values if leaf == "bias" else values.view(self._shape)
        return [Placement(name=leaf, piece="", target=target)]

    def pieces(self, leaf: str) -> set[str]:
        """Return the one piece that fills a parameter."""
        return {""}

    def finish(self) -> None:
        """Pack the weight; an empty tensor of its type and device remains. Mutates: self"""
        self.method.finish(self)
        if "weight" not in self._parameters:
            dtype, device = dtype_of(self.spec.dtype), self.spec.device
            self.weight = torch.empty(0, dtype=dtype, device=device)

    def extra_repr(self) -> str:
        """Return the sizes for print(model)."""
        return f"{self.in_channels} -> {self.out_channels}, kernel={self.kernel_size}"

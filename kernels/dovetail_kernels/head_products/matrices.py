"""HeadMatrices: the matrices of all heads, ready to be multiplied on their device."""

from __future__ import annotations

import torch

from dovetail_kernels.head_products import OP
from dovetail_kernels.head_products.native import FORMATS, HeadProducts
from dovetail_kernels.head_products.reference import reference


class HeadMatrices:
    """Matrices for inputs of a dtype on a device. Shapes: weight [H, I, O]

    For the native kernel they are stored in the narrowest type that holds them exactly, which may
    be 8 bits with a scale for every 32 numbers if the checkpoint had these.
    """

    def __init__(self, weight: torch.Tensor, *, dtype: torch.dtype) -> None:
        self._products: HeadProducts | None = None
        if OP.runs("native", weight.device.type, dtype):
            narrow = _narrowed(weight)
            is_wide = narrow.dtype is torch.float32
            self._products = HeadProducts(narrow, may_be_bytes=is_wide)
            self.tensor = self._products.weight
        else:
            self.tensor = weight.to(dtype).contiguous()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the products. Shapes: x [T, H, I + S] -> [T, H, O + S]"""
        if self._products is not None:
            return self._products(x)
        return reference(x, self.tensor)


def _narrowed(weight: torch.Tensor) -> torch.Tensor:
    for dtype in FORMATS[1:]:
        narrow = weight.to(dtype)
        if torch.equal(narrow.to(weight.dtype), weight):
            return narrow
    return weight.float()

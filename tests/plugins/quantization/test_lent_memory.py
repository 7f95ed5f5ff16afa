"""Large parameters get their memory when they are filled, from layers that are packed already."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dovetail.interfaces.quantization import LinearSpec
from dovetail.layers.linear.placement import Part, place_parts
from dovetail_kernels.cpu.blocks import SCRATCH
from dovetail_kernels.cpu.library import library
from dovetail_plugins.layers.stored.matrix_linear import plain_linear

INPUTS, OUTPUTS = 1024, 1024
pytestmark = pytest.mark.skipif(library() is None, reason="no compiler")


class Layer(nn.Module):
    """A layer of one matrix."""

    def __init__(self) -> None:
        super().__init__()
        spec = LinearSpec(
            name="layer", in_size=INPUTS, out_sizes=(OUTPUTS,), dtype="float32", device="cpu"
        )
        self.method = plain_linear(spec)
        self.method.create(self, spec)

    def fill(self, values: torch.Tensor) -> int:
        """Fill the matrix as a load does; return where it is."""
        weight = self.get_parameter("weight")
        part = Part(name="", full=OUTPUTS, local=OUTPUTS, start=0)
        (placement,) = place_parts("weight", weight, [part], None, None) or []
        placement.fill(values)
        return weight.data_ptr()

    def product(self, x: torch.Tensor) -> torch.Tensor:
        """Pack the matrix, and multiply by it."""
        self.method.finish(self)
        return self.method.apply(self, x, None)


def check(got: torch.Tensor, want: torch.Tensor) -> None:
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-3)


def test_layers_that_are_filled_in_turn_share_memory() -> None:
    x, values = torch.randn(3, INPUTS), torch.randn(4, OUTPUTS, INPUTS)
    layers, places = [Layer() for _ in values], []
    with SCRATCH.reused():
        for layer, own in zip(layers, values, strict=True):
            places.append(layer.fill(own))
            check(layer.product(x), x @ own.T)
    assert len(set(places)) == 1
    for layer, own in zip(layers, values, strict=True):
        check(layer.method.apply(layer, x, None), x @ own.T)


def test_layers_that_are_filled_at_once_do_not() -> None:
    x, values = torch.randn(3, INPUTS), torch.randn(3, OUTPUTS, INPUTS)
    layers = [Layer() for _ in values]
    with SCRATCH.reused():
        places = [layer.fill(own) for layer, own in zip(layers, values, strict=True)]
        assert len(set(places)) == len(layers)
        for layer, own in zip(layers, values, strict=True):
            check(layer.product(x), x @ own.T)


def test_a_parameter_that_is_filled_as_it_is_stays() -> None:
    x, values = torch.randn(3, INPUTS), torch.randn(OUTPUTS, INPUTS)
    layer = Layer()
    layer.get_parameter("weight").data.copy_(values)
    check(layer.product(x), x @ values.T)

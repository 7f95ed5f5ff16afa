"""QuantMethod: layers that multiply correctly, single, fused and in any batch."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dovetail.interfaces.data.headers import StoredLayer, TensorHeader
from dovetail.interfaces.quantization import LinearMethod, LinearSpec, NamedActivation, QuantMethod
from dovetail_kernels.cpu.library import library
from dovetail_testing.contract import device_of, model_spec, without

SPECS = {
    "plain": LinearSpec(name="a.o_proj", in_size=64, out_sizes=(96,), dtype="float32",
                        device="cpu"),
    "fused": LinearSpec(name="a.qkv_proj", in_size=64, out_sizes=(64, 32, 32), dtype="float32",
                        device="cpu"),
}  # fmt: skip


@pytest.fixture
def method(plugin: Any) -> QuantMethod:
    """Return the method for an unquantized checkpoint, or skip."""
    device_of(plugin)
    spec = model_spec()
    reasons = plugin.why_not(spec)
    if reasons:
        pytest.skip("; ".join(reasons))
    quantization: QuantMethod = plugin(plugin.Options(), spec)
    return quantization


def loaded(method: LinearMethod, spec: LinearSpec) -> nn.Module:
    """Return a layer whose parameters are small numbers, before `finish`."""
    layer = nn.Module()
    method.create(layer, spec)
    random = torch.Generator().manual_seed(0)
    for parameter in layer.parameters():
        if parameter.is_floating_point():
            values = torch.randn(parameter.shape, generator=random) / spec.in_size**0.5
            parameter.data.copy_(values.to(parameter.dtype))
    return layer


def filled(method: LinearMethod, spec: LinearSpec) -> nn.Module:
    """Return a layer of small numbers that is ready to multiply."""
    layer = loaded(method, spec)
    method.finish(layer)
    return layer


def inputs(spec: LinearSpec, num_tokens: int) -> torch.Tensor:
    """Return x [T, I]."""
    return torch.randn(num_tokens, spec.in_size, generator=torch.Generator().manual_seed(1))


class TestQuantization:
    """Clauses of quantization methods."""

    kind = "quantization"

    def test_claims_an_origin(self, plugin: Any, entry: Any) -> None:
        """Every method except the unquantized one says where its weights come from."""
        assert entry.name == "none" or plugin.capabilities

    @pytest.mark.parametrize("layout", list(SPECS))
    def test_shapes(self, method: QuantMethod, layout: str) -> None:
        """[T, I] becomes [T, O] in the compute dtype, with and without bias, for no token too."""
        spec = SPECS[layout]
        linear = method.linear(spec)
        layer = filled(linear, spec)
        for num_tokens in (0, 1, 7):
            for bias in (None, torch.ones(spec.out_size)):
                out = linear.apply(layer, inputs(spec, num_tokens), bias)
                assert (out.shape, out.dtype) == ((num_tokens, spec.out_size), torch.float32)

    def test_is_linear(self, method: QuantMethod) -> None:
        """Twice the input gives twice the output, and the bias is added once."""
        spec = SPECS["plain"]
        linear = method.linear(spec)
        layer = filled(linear, spec)
        x, bias = inputs(spec, 3), torch.arange(spec.out_size, dtype=torch.float32)
        plain = linear.apply(layer, x, None)
        torch.testing.assert_close(linear.apply(layer, x, bias), plain + bias)
        torch.testing.assert_close(linear.apply(layer, 2 * x, None), 2 * plain, rtol=1e-2, atol=0.1)

    def test_ends_are_those_of_the_plain_product(self, method: QuantMethod) -> None:
        """An activation and a residual, which a kernel may join, change nothing else."""
        spec = SPECS["plain"]
        linear = method.linear(spec)
        layer = filled(linear, spec)
        x, bias = inputs(spec, 3), torch.arange(spec.out_size, dtype=torch.float32) / 9 - 4
        plain = linear.apply(layer, x, bias)
        for name, function in (("gelu", F.gelu), ("relu", F.relu), ("", torch.tanh)):
            act = NamedActivation(name=name, function=function)
            found = linear.apply_activated(layer, x, bias, act)
            torch.testing.assert_close(found, function(plain))
        found = linear.apply_add(layer, x, bias, plain)
        torch.testing.assert_close(found, plain + plain)

    @without("while_loading")
    def test_unquantized_is_exact(self, method: QuantMethod, entry: Any) -> None:
        """The unquantized method is x W^T, and its weight names its axes."""
        if entry.name != "none":
            pytest.skip("only for unquantized weights")
        spec = SPECS["fused"]
        linear = method.linear(spec)
        layer = loaded(linear, spec)
        weight = layer.get_parameter("weight").detach().clone()
        assert weight.shape == (spec.out_size, spec.in_size)
        linear.finish(layer)
        x = inputs(spec, 5)
        torch.testing.assert_close(linear.apply(layer, x, None), x @ weight.T)

    def test_parameters_name_their_axes(self, method: QuantMethod) -> None:
        """Loading can divide every parameter: each says which axis is output and input."""
        layer = nn.Module()
        method.linear(SPECS["plain"]).create(layer, SPECS["plain"])
        for name, parameter in layer.named_parameters():
            axes = {
                key: vars(parameter).get(key, "absent") for key in ("output_axis", "input_axis")
            }
            assert all(axis is None or isinstance(axis, int) for axis in axes.values()), name

    def test_tells_what_stays(self, method: QuantMethod) -> None:
        """The memory estimate of a full-precision layer matches the finished layer."""
        spec = SPECS["plain"]
        shape = (spec.out_size, spec.in_size)
        header = TensorHeader(
            name=f"{spec.name}.weight",
            shape=shape,
            dtype=spec.dtype,
            num_bytes=4 * math.prod(shape),
            file="model.safetensors",
        )
        stored = StoredLayer(name=spec.name, tensors={"weight": header})
        estimate = method.memory_estimate(stored, packs=library() is not None)
        if estimate is None:
            pytest.skip("it does not tell")
        layer = filled(method.linear(spec), spec)
        num_bytes = sum(t.nbytes for t in (*layer.parameters(), *layer.buffers()))
        assert (estimate.num_values, estimate.num_bytes) == (math.prod(shape), num_bytes)

    def test_batch_does_not_matter(self, method: QuantMethod) -> None:
        """A token's output does not depend on the other tokens."""
        spec = SPECS["plain"]
        linear = method.linear(spec)
        layer = filled(linear, spec)
        x = inputs(spec, 9)
        whole = linear.apply(layer, x, None)
        alone = torch.cat([linear.apply(layer, x[i : i + 1], None) for i in range(9)])
        torch.testing.assert_close(whole, alone, rtol=1e-4, atol=1e-5)

    def test_layers_are_apart(self, method: QuantMethod) -> None:
        """Two layers made by one method share no parameter."""
        linear = method.linear(SPECS["plain"])
        one, two = filled(linear, SPECS["plain"]), filled(linear, SPECS["plain"])
        addresses = {p.data_ptr() for p in one.parameters()}
        assert not addresses & {p.data_ptr() for p in two.parameters()}

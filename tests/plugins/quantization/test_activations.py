"""The option `activations`: what products make of theirs, by method, checkpoint and device."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
import torch
from torch import nn

from dovetail import registry
from dovetail.interfaces.quantization import LinearSpec, QuantMethod
from dovetail_kernels.cpu.library import library
from dovetail_kernels.gemm.cases import make_weight
from dovetail_kernels.gemm.matrix import multiplies_pairs
from dovetail_kernels.gemm.weight import FORMATS, Weight
from dovetail_plugins.layers.stored.products import multiplied, takes_of, with_floats, with_integers
from dovetail_plugins.layers.stored.rounding import ActivationOptions
from dovetail_testing.contract import model_spec
from support.inside import format_in

INT8_INPUTS = {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True}
FLOAT_FORMATS = [f for f in FORMATS if "_" not in f or f == "int8_float32"]


def spec_of(device: str = "cpu", weight_dtype: str = "float16") -> LinearSpec:
    return LinearSpec(
        name="model.layers.0.mlp.experts.up_proj",
        in_size=128,
        out_sizes=(64,),
        dtype="float32" if device == "cpu" else "float16",
        device=device,
        weight_dtype=weight_dtype,
    )


def method_of(name: str, config: dict[str, Any] | None, **options: Any) -> QuantMethod:
    cls: Any = registry.load("quantization", name)
    spec = model_spec()
    if config is not None:
        stored = {"quant_method": cls.stored_as[0], **config}
        facts = {**spec.hf_config, "quantization_config": stored}
        spec = msgspec.structs.replace(spec, hf_config=facts)
    made: QuantMethod = cls(cls.Options(**options), spec)
    return made


def filled(made: QuantMethod, spec: LinearSpec) -> tuple[Any, nn.Module]:
    """Return a layer of random stored tensors, finished."""
    linear: Any = made.linear(spec)
    layer, random = nn.Module(), torch.Generator().manual_seed(0)
    linear.create(layer, spec)
    for name, parameter in layer.named_parameters():
        data = parameter.data
        if data.is_floating_point():
            found = torch.rand(data.shape, generator=random) + 0.1
            found = found - 0.6 if name == "weight" else found
        else:
            found = torch.randint(0, 100, data.shape, generator=random)
        data.copy_(found.to(data.dtype))
        if name.endswith("g_idx"):
            data.fill_(-1)
        if name.endswith("zero_point"):
            data.zero_()
    linear.finish(layer)
    return linear, layer


def format_of(made: QuantMethod, spec: LinearSpec) -> str:
    linear, _ = filled(made, spec)
    return str(format_in(linear))


def test_every_method_has_the_option_and_float() -> None:
    for name in registry.names("quantization"):
        cls = registry.load("quantization", name)
        options = cls.Options(activations="float")
        assert isinstance(options, ActivationOptions), name
        assert options.activations == "float"


GPTQ = {"bits": 4, "group_size": 32}
W8A8 = {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True}
CASES: list[tuple[str, dict[str, Any] | None, str, str]] = [
    ("gptq", GPTQ, "int4_int8", "int4"),
    ("awq", GPTQ, "int4_int8", "int4"),
    ("hqq", {"quant_config": {"weight_quant_params": {"nbits": 4, "group_size": 32, "axis": 1}}},
     "int4_int8", "int4"),
    ("torchao", {"quant_type": {"default": {"_type": "Int8WeightOnlyConfig", "_data": {}}}},
     "int8", "int8_float32"),
    ("bitsandbytes", {"load_in_8bit": True}, "int8", "int8_float32"),
    ("gguf", {"types": {"model.layers.0.mlp.experts.up_proj": "Q8_0"}}, "int8_int8",
     "int8_float32"),
    ("compressed-tensors", {"format": "pack-quantized", "config_groups": {"0": {
        "targets": ["Linear"], "weights": {**W8A8, "num_bits": 4}}}}, "int4_int8", "int4"),
    ("int8", None, "int8", "int8_float32"),
    ("int4", None, "int6_int8", "int6"),
    ("int4-plain", None, "int4_int8", "int4"),
    ("experts_int8", None, "int8", "int8_float32"),
    ("fp8", None, "float8", "float8"),
    ("none", None, "float16", "float16"),
]  # fmt: skip
"""Method, its config, the formats with integers and with floats."""


@pytest.mark.skipif(library() is None, reason="torch multiplies plain floats")
@pytest.mark.parametrize(("name", "config", "rounded", "plain"), CASES)
def test_on_a_cpu(name: str, config: dict[str, Any] | None, rounded: str, plain: str) -> None:
    assert format_of(method_of(name, config), spec_of()) == rounded
    assert format_of(method_of(name, config, activations="float"), spec_of()) == plain


DECLARED: list[tuple[str, dict[str, Any]]] = [
    ("compressed-tensors", {"format": "int-quantized", "config_groups": {"0": {
        "targets": ["Linear"], "weights": W8A8, "input_activations": INT8_INPUTS}}}),
    ("compressed-tensors", {"format": "pack-quantized", "config_groups": {"0": {
        "targets": ["Linear"], "weights": {**W8A8, "num_bits": 4},
        "input_activations": INT8_INPUTS}}}),
    ("torchao", {"quant_type": {"default": {
        "_type": "Int8DynamicActivationInt8WeightConfig", "_data": {}}}}),
    ("qqq", {"wbits": 4, "group_size": -1}),
]  # fmt: skip
NOT_DECLARED: list[tuple[str, dict[str, Any]]] = [
    ("compressed-tensors", {"format": "int-quantized", "config_groups": {"0": {
        "targets": ["Linear"], "weights": W8A8}}}),
    ("compressed-tensors", {"format": "int-quantized", "config_groups": {"0": {
        "targets": ["Linear"], "weights": W8A8,
        "input_activations": {**INT8_INPUTS, "strategy": "group", "group_size": 32}}}}),
    ("torchao", {"quant_type": {"default": {"_type": "Int8WeightOnlyConfig", "_data": {}}}}),
    ("gptq", GPTQ),
    ("bitsandbytes", {"load_in_8bit": True}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "config", "is_declared"),
    [*((*case, True) for case in DECLARED), *((*case, False) for case in NOT_DECLARED)],
)
def test_a_scale_a_token_where_the_checkpoint_says_so(
    name: str, config: dict[str, Any], is_declared: bool
) -> None:
    made: Any = method_of(name, config)
    spec = spec_of()
    stored = made.layout(spec).tensors(spec)
    tensors = {
        one.name: torch.full(one.shape, 1 if one.default is None else one.default).to(
            getattr(torch, one.dtype)
        )
        for one in stored
    }
    weight = made.layout(spec).weight(tensors)
    assert weight.has_token_scales == is_declared
    there, becomes = multiplied(weight, made.activations, spec)
    assert becomes == ("token" if is_declared else "int8")
    assert there.has_token_scales == is_declared
    there, becomes = multiplied(weight, "float", spec)
    assert becomes == "float"
    assert not there.has_token_scales
    assert not (there.format == "int8" or there.format.endswith("_int8"))
    there, becomes = multiplied(weight, made.activations, spec_of("cuda"))
    assert becomes == ("token" if is_declared else "float")


@pytest.mark.parametrize("format", FLOAT_FORMATS)
@pytest.mark.parametrize("asked", ["auto", "int8", "bfloat16", "float"])
def test_on_a_gpu_no_default_rounds(format: str, asked: str) -> None:
    """Integers take int8 there if it is asked for; what a GPU is given is the same matrix."""
    weight = make_weight(format, 32, 256)
    there, becomes = multiplied(weight, asked, spec_of("cuda", "bfloat16"))
    is_rounded = asked == "int8" and takes_of(weight) == "int8"
    assert becomes == ("int8" if is_rounded else "float")
    is_integer = there.format == "int8" or there.format.endswith("_int8")
    assert is_integer == is_rounded
    assert torch.equal(there.dequantize(), weight.dequantize())


@pytest.mark.parametrize("format", [f for f in FORMATS if f == "int8" or f.endswith("_int8")])
def test_both_forms_mean_the_same_matrix(format: str) -> None:
    weight = make_weight(format, 32, 256)
    plain = with_floats(weight)
    assert plain.format in FLOAT_FORMATS
    assert torch.equal(plain.dequantize(), weight.dequantize())
    again = with_integers(plain)
    assert again.format == format
    assert torch.equal(again.dequantize(), weight.dequantize())


def test_groups_that_int8_does_not_fit_stay_float() -> None:
    weight: Weight = make_weight("int4", 32, 240, group=24)
    there, becomes = multiplied(weight, "int8", spec_of())
    assert (there.format, becomes) == ("int4", "float")


@pytest.mark.parametrize(
    ("name", "dtype", "asked", "rounds"),
    [
        ("fp8", "bfloat16", None, True),
        ("fp8", "bfloat16", "bfloat16", True),
        ("fp8", "bfloat16", "float", False),
        ("fp8", "float16", None, False),
        ("none", "bfloat16", None, True),
        ("none", "bfloat16", "float", False),
        ("deepspeedfp", "bfloat16", None, True),
        ("deepspeedfp", "bfloat16", "float", False),
        ("bitsandbytes", "bfloat16", None, True),
        ("bitsandbytes", "bfloat16", "float", False),
        ("neuron_quant", "bfloat16", "float", False),
        ("int4", "bfloat16", "float", False),
    ],
)
def test_bfloat16_follows_the_model_and_the_option(
    name: str, dtype: str, asked: str | None, rounds: bool
) -> None:
    """On CPUs that gain by it; "float" rounds nothing, whatever the instruction set."""
    options = {} if asked is None else {"activations": asked}
    spec = spec_of(weight_dtype=dtype)
    linear, layer = filled(method_of(name, None, **options), spec)
    x = torch.randn(5, 128, generator=torch.Generator().manual_seed(0))
    right = x.double() @ linear.rows(layer, torch.arange(64)).double().T
    error = float((linear.apply(layer, x, None) - right).abs().max() / right.std())
    assert (error > 1e-4) == (rounds and multiplies_pairs(in_groups=name != "none")), error


@pytest.mark.parametrize("name", ["int4", "int8", "gguf"])
def test_float_leaves_plain_layers_alone_too(name: str) -> None:
    spec = replace(spec_of(weight_dtype="bfloat16"), name="model.layers.0.mlp.gate")
    config = {"types": {}} if name == "gguf" else None
    linear, layer = filled(method_of(name, config, activations="float"), spec)
    x = torch.randn(5, 128, generator=torch.Generator().manual_seed(0))
    right = x.double() @ linear.rows(layer, torch.arange(64)).double().T
    assert (linear.apply(layer, x, None) - right).abs().max() <= 1e-4 * right.std()

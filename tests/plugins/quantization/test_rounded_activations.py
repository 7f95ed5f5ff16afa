"""Which layers of quantized checkpoints round activations to bfloat16: those of models kept in it,
unless the method's option says no, on CPUs that gain by it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dovetail.interfaces.quantization import LinearSpec
from dovetail.testing.contract import model_spec
from dovetail_kernels.gemm.matrix import multiplies_pairs
from dovetail_plugins.quantization.fp8 import Fp8


@pytest.mark.parametrize(
    ("dtype", "may", "rounds"),
    [("bfloat16", True, True), ("bfloat16", False, False), ("float16", True, False)],
)
def test_rounding_follows_the_model_and_the_option(dtype: str, may: bool, rounds: bool) -> None:
    spec = LinearSpec(
        name="a.up_proj",
        in_size=64,
        out_sizes=(40,),
        dtype="float32",
        device="cpu",
        weight_dtype=dtype,
    )
    linear = Fp8(Fp8.Options(round_activations=may), model_spec()).linear(spec)
    layer, random = nn.Module(), torch.Generator().manual_seed(0)
    linear.create(layer, spec)
    layer.get_parameter("weight").data.normal_(generator=random)
    linear.finish(layer)
    x = torch.randn(5, 64, generator=random)
    right = x @ linear.rows(layer, torch.arange(40)).T
    error = float((linear.apply(layer, x, None) - right).abs().max())
    assert (error > 1e-3) == (rounds and multiplies_pairs())
